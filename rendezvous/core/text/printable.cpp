#include "rendezvous/core/text/printable.hpp"

#include <fmt/format.h>

#include <cstdint>

#include "rendezvous/core/text/utf8.hpp"

namespace torchup {
namespace {

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
    const CodePoint character = first_code_point(text);
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
