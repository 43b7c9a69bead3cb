#include "rendezvous/core/text/base64.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace torchup {
namespace {

constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t no_letter = 64;

/// Of each character its place among the letters.
constexpr std::array<std::uint8_t, 256> places = [] {
  std::array<std::uint8_t, 256> table{};
  table.fill(no_letter);
  for (std::size_t i = 0; i < letters.size(); ++i) {
    table[static_cast<unsigned char>(letters[i])] = static_cast<std::uint8_t>(i);
  }
  return table;
}();

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      text += i + k > bytes.size() ? '=' : letters[group >> (18 - 6 * k) & 63];
    }
  }
  return text;
}

Result<std::string> from_base64(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  std::uint32_t group = 0;
  int in_group = 0;  // letters of the group so far
  int padding = 0;   // since the last letter
  for (const char c : text) {
    if (c == '=') {
      ++padding;
      if (in_group >= 2 && in_group + padding >= 4) {
        in_group = 0;
        break;
      }
      continue;
    }
    const std::uint8_t place = places[static_cast<unsigned char>(c)];
    if (place == no_letter) continue;
    padding = 0;
    group = group << 6 | place;
    ++in_group;
    // A byte is whole with the group's second, third and fourth letter.
    if (in_group > 1) bytes.push_back(static_cast<char>(group >> (8 - 2 * in_group) & 0xff));
    if (in_group == 4) in_group = 0;
  }
  if (in_group != 0) return fail(errc::bad_frame, "base64 with wrong padding");
  return bytes;
}

}  // namespace torchup
