#include "rendezvous/core/text/names.hpp"

#include <cstdint>

namespace torchup {
namespace {

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

/// Bytes of the character that `text` starts with; 0 when it starts with none. A control character counts as none.
std::size_t character_size(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return first < 0x20 || first == 0x7f ? 0 : 1;
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < size) return 0;
  std::uint32_t point = first & (0xffu >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if (!continues(text[i])) return 0;
    point = point << 6 | (static_cast<unsigned char>(text[i]) & 0x3fu);
  }
  const bool longer_than_needed = (size == 3 && point < 0x800) || (size == 4 && point < 0x10000);
  const bool surrogate = point >= 0xd800 && point <= 0xdfff;
  const bool control = point < 0xa0 || point == 0x2028 || point == 0x2029;  // C1 and the two that end a line
  return longer_than_needed || surrogate || control || point > 0x10ffff ? 0 : size;
}

}  // namespace

std::string_view why_no_name(std::string_view text) {
  if (text.size() > name_bytes_max) return "it is longer than 256 bytes";
  while (!text.empty()) {
    const std::size_t size = character_size(text);
    if (size == 0) return "it has control characters or is not UTF-8";
    text.remove_prefix(size);
  }
  return {};
}

std::string as_name(std::string_view text) {
  std::string name;
  while (!text.empty()) {
    const std::size_t size = character_size(text);
    const std::size_t taken = size == 0 ? 1 : size;
    if (name.size() + taken > name_bytes_max) break;
    if (size == 0) {
      name.push_back('?');
    } else {
      name += text.substr(0, size);
    }
    text.remove_prefix(taken);
  }
  return name;
}

std::string_view cut_text(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  std::size_t end = bytes_max;
  while (end > 0 && bytes_max - end < 4 && continues(text[end])) --end;
  return text.substr(0, end);
}

}  // namespace torchup
