#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/types.hpp"

/// A rehearsal's script as words, numbers and times: what rehearsal_script is read from.
namespace torchup {

/// Counted from 1; columns are bytes.
struct ScriptPlace {
  std::size_t line = 1;
  std::size_t column = 1;
};
struct ScriptWord {
  std::string_view text = {};
  ScriptPlace place = {};
};
/// One statement, which has words; comments are gone.
struct StatementWords {
  std::vector<ScriptWord> words = {};
  ScriptPlace end = {};  ///< behind the last word
};
/// The words are views into `text`.
[[nodiscard]] std::vector<StatementWords> split_statements(std::string_view text);

/// What a word says as a time.
struct ScriptTime {
  enum class Is : std::uint8_t { good, none, zero, too_long };
  Is is = Is::none;
  Duration time{0};  ///< of a good one, which is > 0 and <= script_time_max
};
[[nodiscard]] ScriptTime script_time(std::string_view text);

/// A whole number from `least` to `most`, and nothing around it.
template <class T>
[[nodiscard]] std::optional<T> script_number(std::string_view text, T least, T most) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most) return std::nullopt;
  return value;
}

}  // namespace torchup
