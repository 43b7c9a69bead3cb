#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/base/types.hpp"

namespace torchup {

/// What Python's str.strip() takes for blank, of ASCII.
inline constexpr std::string_view blanks = " \t\n\r\f\v";

/// `text` without `blank` characters at its ends.
[[nodiscard]] std::string_view stripped(std::string_view text, std::string_view blank = blanks);

/// The parts of `text` between separators, at least one: "a,,b" has three, the empty text one.
[[nodiscard]] std::vector<std::string_view> split(std::string_view text, char separator);

/// The lines of `text`, without their ends.
[[nodiscard]] std::vector<std::string> lines_of(std::string_view text);

/// Names and what stands for them.
using Substitutions = std::initializer_list<std::pair<std::string_view, std::string>>;

/// Python's string.Template.safe_substitute: `$name` and `${name}` for these names, other names stay as they are, `$$`
/// is `$`.
[[nodiscard]] std::string substituted(std::string_view text, const Substitutions& names);

/// `text` for a terminal or a log, whoever wrote it: control characters but tab and line feed as `\x1b`, as is what is
/// not UTF-8. Nothing in it can move the cursor, change colours or answer for the keyboard.
[[nodiscard]] std::string printable_lines(std::string_view text);

/// What stands at the front of `text`, which is not empty: a UTF-8 character of `length` bytes, or `length` bytes that
/// begin none.
struct Character {
  std::size_t length;
  bool valid;
  bool unfinished;  ///< the text ends within what may become a character
};
[[nodiscard]] Character first_character(std::string_view text);

/// Whether `text` begins with `start`, which is taken off it then.
[[nodiscard]] bool take_start(std::string_view& text, std::string_view start);

/// `12.3 s`; what is less than a tenth is cut.
[[nodiscard]] std::string seconds_text(Duration duration);

}  // namespace torchup
