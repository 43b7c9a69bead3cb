#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace torchup {

/// Whether what is written may have colours.
enum class Colour { none, terminal };

/// `text` in a colour of a terminal (an SGR parameter, "31"); as it is without colours.
[[nodiscard]] std::string coloured(std::string_view text, std::string_view sgr, Colour colour);

/// How many columns it takes: a character is one.
[[nodiscard]] std::size_t columns_of(std::string_view text);

/// Rows under their heads, two blanks apart, without blanks at the ends of lines. A cell is a stranger's: control
/// characters in it are shown as `\x1b`, and it is cut beyond cell_bytes_max.
class Table {
 public:
  struct Column {
    std::string_view head;
    bool right = false;  ///< numbers
  };
  explicit Table(std::vector<Column> columns) : columns_{std::move(columns)} {}
  void add(std::vector<std::string> cells);
  [[nodiscard]] std::vector<std::string> lines() const;

  static constexpr std::size_t cell_bytes_max = 512;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// "0:35", "1:12:03", "3d 04:05:06"; negative times are none.
[[nodiscard]] std::string lasting_text(double seconds);

/// "3.1", "0.042", "1200": three digits that count.
[[nodiscard]] std::string rate_text(double rate);

/// Lines with their ends.
[[nodiscard]] std::string joined_lines(const std::vector<std::string>& lines);

}  // namespace torchup
