#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace torchup {

/// A character of Unicode.
struct CodePoint {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  ///< 0: what begins here is no UTF-8
};

/// The character that begins `text`, which is not empty. Overlong forms, surrogates and what lies beyond Unicode are
/// none. Source: The Unicode Standard, table 3-7.
[[nodiscard]] inline CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return {};
  std::uint32_t code = lead & (0xffU >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < smallest[size] || code > 0x10ffff || surrogate) return {};
  return {code, size};
}

}  // namespace torchup
