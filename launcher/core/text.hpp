#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/types.hpp"

namespace torchup {

/// What Python's str.strip() takes for blank, of ASCII.
inline constexpr std::string_view blanks = " \t\n\r\f\v";

/// `text` without `blank` characters at its ends.
[[nodiscard]] std::string_view stripped(std::string_view text, std::string_view blank = blanks);

/// The parts of `text` between separators, at least one: "a,,b" has three, the empty text one.
[[nodiscard]] std::vector<std::string_view> split(std::string_view text, char separator);

/// `12.3 s`; what is less than a tenth is cut.
[[nodiscard]] std::string seconds_text(Duration duration);

}  // namespace torchup
