#include "rendezvous/core/text/printable.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace torchup {
namespace {

struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  ///< 0: what begins here is no UTF-8
};

/// The character that begins `text`, which is not empty. Overlong forms, surrogates and what lies beyond Unicode are
/// none. Source: The Unicode Standard, table 3-7.
Character first_character(std::string_view text) {
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

/// Characters that steer a terminal or an editor instead of being seen.
bool steers(std::uint32_t code) {
  const bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
  const bool separates = code == 0x2028 || code == 0x2029;
  const bool turns = code == 0x61c || code == 0x200e || code == 0x200f || (code >= 0x202a && code <= 0x202e) ||
                     (code >= 0x2066 && code <= 0x2069);
  return control || separates || turns;
}

std::string escaped(std::uint32_t code) {
  switch (code) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return code < 0x100 ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{:04x}", code);
  }
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_character(text);
    if (character.bytes == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
      text.remove_prefix(1);
      continue;
    }
    if (steers(character.code)) {
      out += escaped(character.code);
    } else {
      out += text.substr(0, character.bytes);
    }
    text.remove_prefix(character.bytes);
  }
  return out;
}

std::string printable_start(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return printable(text);
  std::string_view start = text.substr(0, bytes_max);
  // Not in the middle of a character: a byte that continues one never begins the rest.
  constexpr std::size_t continuations_max = 3;
  for (std::size_t i = 0; i < continuations_max && !start.empty(); ++i) {
    if ((static_cast<unsigned char>(text[start.size()]) & 0xc0) != 0x80) break;
    start.remove_suffix(1);
  }
  return fmt::format("{}… ({} bytes)", printable(start), text.size());
}

}  // namespace torchup
