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

std::optional<Duration> script_time(std::string_view text) {
  struct Unit {
    std::string_view name;
    std::chrono::microseconds length;
  };
  constexpr std::array units{Unit{"ms", std::chrono::milliseconds{1}}, Unit{"s", std::chrono::seconds{1}},
                             Unit{"m", std::chrono::minutes{1}}};
  const std::size_t unit_at = std::min(text.find_first_not_of("0123456789."), text.size());
  const auto unit = std::ranges::find(units, text.substr(unit_at), &Unit::name);
  if (unit == units.end()) return std::nullopt;
  const std::string_view number = text.substr(0, unit_at);
  const std::size_t point = number.find('.');
  constexpr std::int64_t thousand = 1000;  // three digits behind the point at most
  const auto whole =
      script_number<std::int64_t>(number.substr(0, point), 0, script_time_max / std::chrono::microseconds{1});
  std::int64_t thousandths = 0;
  if (point != std::string_view::npos) {
    const std::string_view digits = number.substr(point + 1);
    const auto value = script_number<std::int64_t>(digits, 0, thousand - 1);
    if (!value || digits.size() > 3) return std::nullopt;
    thousandths = *value;
    for (std::size_t i = digits.size(); i < 3; ++i) thousandths *= 10;
  }
  if (!whole) return std::nullopt;
  const auto most = script_time_max / unit->length;
  if (*whole > most) return std::nullopt;
  const Duration time = unit->length * *whole + unit->length * thousandths / thousand;
  return time > Duration{0} && time <= script_time_max ? std::optional{time} : std::nullopt;
}

}  // namespace torchup
