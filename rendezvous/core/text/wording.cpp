#include "rendezvous/core/text/wording.hpp"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace torchup {

std::string seconds(Duration duration) {
  const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count() / 100;
  return tenths % 10 == 0 ? fmt::format("{} s", tenths / 10) : fmt::format("{}.{} s", tenths / 10, tenths % 10);
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array<std::string_view, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
  constexpr std::int64_t step = 1024;
  if (bytes < 0) return {};
  if (bytes < step) return fmt::format("{} B", bytes);
  std::size_t unit = 1;
  std::int64_t of_unit = step;
  for (; bytes / of_unit >= step && unit + 1 < units.size(); ++unit) of_unit *= step;
  const std::int64_t tenths = bytes % of_unit * 10 / of_unit;
  return fmt::format("{}.{} {}", bytes / of_unit, tenths, units[unit]);
}

std::string nodes_wanted(int min, int max) {
  const char* noun = max == 1 ? "node" : "nodes";
  return min == max ? fmt::format("{} {}", max, noun) : fmt::format("{} to {} {}", min, max, noun);
}

std::string join_names(std::span<const std::string> names, std::size_t shown) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < shown; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

}  // namespace torchup
