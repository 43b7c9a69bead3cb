#include "rendezvous/base/cpu_set.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>

namespace torchup {
namespace {

constexpr int index_max = 1'048'575;

/// `text` without what Python's str.strip() takes for blank at its ends.
std::string_view stripped(std::string_view text) {
  constexpr std::string_view blanks = " \t\n\r\f\v";
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

bool read_index(std::string_view text, int& index) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  return error == std::errc{} && end == text.data() + text.size() && index >= 0 && index <= index_max;
}

}  // namespace

Result<CpuSet> parse_cpu_list(std::string_view text) {
  CpuSet cpus;
  for (std::string_view rest = text; !rest.empty();) {
    const auto comma = rest.find(',');
    const std::string_view part = stripped(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    if (part.empty()) continue;
    const auto dash = part.find('-');
    int first = 0;
    int last = 0;
    const bool good = dash == std::string_view::npos ? read_index(part, first) && (last = first, true)
                                                     : read_index(part.substr(0, dash), first) &&
                                                           read_index(part.substr(dash + 1), last) && first <= last;
    if (!good)
      return fail(errc::bad_value,
                  "CPU list '" + std::string{stripped(text)} + "': '" + std::string{part} + "' is no index or range");
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpus.end(), cpu);
  }
  return cpus;
}

std::string to_cpu_list(const CpuSet& cpus) {
  std::string text;
  for (auto cpu = cpus.begin(); cpu != cpus.end();) {
    const int first = *cpu;
    int last = first;
    while (++cpu != cpus.end() && *cpu == last + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(first);
    if (last > first) text.append("-").append(std::to_string(last));
  }
  return text;
}

CpuSet intersection(const CpuSet& left, const CpuSet& right) {
  CpuSet both;
  std::set_intersection(left.begin(), left.end(), right.begin(), right.end(), std::inserter(both, both.end()));
  return both;
}

}  // namespace torchup
