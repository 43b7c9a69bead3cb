#include "launcher/ctl/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "rendezvous/core/text/printable.hpp"

namespace torchup {

std::string coloured(std::string_view text, std::string_view sgr, Colour colour) {
  if (colour == Colour::none || sgr.empty() || text.empty()) return std::string{text};
  return fmt::format("\x1b[{}m{}\x1b[0m", sgr, text);
}

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (std::string& cell : cells) cell = printable_start(cell, cell_bytes_max);
  rows_.push_back(std::move(cells));
}

std::vector<std::string> Table::lines() const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    widths.push_back(columns_of(columns_[i].head));
    for (const auto& row : rows_) widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  std::vector<std::string> lines;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string_view cell = cell_of(i);
      const std::string padding(widths[i] - columns_of(cell), ' ');
      if (i > 0) line += "  ";
      line += columns_[i].right ? padding + std::string{cell} : std::string{cell} + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(std::move(line));
  };
  add_line([&](std::size_t i) { return columns_[i].head; });
  for (const auto& row : rows_) add_line([&](std::size_t i) { return std::string_view{row[i]}; });
  return lines;
}

std::string lasting_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e12) return "-";
  const auto whole = static_cast<std::int64_t>(seconds);
  const std::int64_t days = whole / 86400, hours = whole / 3600 % 24, minutes = whole / 60 % 60, rest = whole % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}:{:02}", days, hours, minutes, rest);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, rest);
  return fmt::format("{}:{:02}", minutes, rest);
}

std::string rate_text(double rate) {
  if (!std::isfinite(rate) || rate < 0) return "-";
  if (rate >= 100) return fmt::format("{:.0f}", rate);
  if (rate >= 10) return fmt::format("{:.1f}", rate);
  return fmt::format("{:.3g}", rate);
}

std::string joined_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace torchup
