#include "launcher/core/rehearsal/rehearsal_words.hpp"

#include <algorithm>
#include <array>
#include <chrono>

#include "launcher/core/rehearsal/rehearsal_script.hpp"

namespace torchup {

std::vector<StatementWords> split_statements(std::string_view text) {
  std::vector<StatementWords> statements(1);
  ScriptPlace place;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '\n' || c == ';') {
      statements.emplace_back();
      place = c == '\n' ? ScriptPlace{place.line + 1, 1} : ScriptPlace{place.line, place.column + 1};
      ++at;
      continue;
    }
    std::size_t length = 1;
    if (c == '#') {
      length = std::min(text.find('\n', at), text.size()) - at;
    } else if (c != ' ' && c != '\t' && c != '\r') {
      length = std::min(text.find_first_of(" \t\r\n;#", at), text.size()) - at;
      statements.back().words.push_back({text.substr(at, length), place});
      statements.back().end = {place.line, place.column + length};
    }
    at += length;
    place.column += length;
  }
  std::erase_if(statements, [](const StatementWords& statement) { return statement.words.empty(); });
  return statements;
}

ScriptTime script_time(std::string_view text) {
  struct Unit {
    std::string_view name;
    std::chrono::microseconds length;
  };
  constexpr std::array units{Unit{"ms", std::chrono::milliseconds{1}}, Unit{"s", std::chrono::seconds{1}},
                             Unit{"m", std::chrono::minutes{1}}};
  constexpr std::size_t digits_max = 3;  // behind the point
  using Is = ScriptTime::Is;
  const std::size_t unit_at = std::min(text.find_first_not_of("0123456789."), text.size());
  const auto unit = std::ranges::find(units, text.substr(unit_at), &Unit::name);
  const std::size_t point = std::min(text.find('.'), unit_at);
  const std::string_view whole = text.substr(0, point);
  const bool has_part = point < unit_at;
  const std::string_view part = has_part ? text.substr(point + 1, unit_at - point - 1) : "0";
  const bool number =
      !whole.empty() && !part.empty() && part.size() <= digits_max && part.find('.') == std::string_view::npos;
  if (unit == units.end() || !number) return {};
  const auto count = script_number<std::int64_t>(
      whole, 0, std::chrono::duration_cast<std::chrono::microseconds>(script_time_max) / unit->length);
  if (!count) return {.is = Is::too_long};
  std::int64_t thousandths = script_number<int>(part, 0, 999).value_or(0);
  for (std::size_t i = part.size(); i < digits_max; ++i) thousandths *= 10;
  const Duration time = unit->length * *count + unit->length * thousandths / 1000;
  if (time <= Duration{0}) return {.is = Is::zero};
  if (time > script_time_max) return {.is = Is::too_long};
  return {.is = Is::good, .time = time};
}

}  // namespace torchup
