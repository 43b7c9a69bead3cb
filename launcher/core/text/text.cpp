#include "launcher/core/text/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace torchup {

std::string_view stripped(std::string_view text, std::string_view blank) {
  const auto first = text.find_first_not_of(blank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string substituted(std::string_view text, const Substitutions& names) {
  constexpr std::string_view name_characters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
  std::string result;
  for (;;) {
    const auto dollar = text.find('$');
    result += text.substr(0, dollar);
    if (dollar == std::string_view::npos) return result;
    text.remove_prefix(dollar + 1);
    if (text.starts_with('$')) {
      result += '$';
      text.remove_prefix(1);
      continue;
    }
    const bool braced = text.starts_with('{');
    std::string_view name = text.substr(braced ? 1 : 0);
    name = name.substr(0, name.find_first_not_of(name_characters));
    const std::size_t end = name.size() + (braced ? 1 : 0);
    const bool closed = !braced || (end < text.size() && text[end] == '}');
    const auto* found = std::find_if(names.begin(), names.end(), [&](const auto& each) { return each.first == name; });
    if (!closed || found == names.end()) {
      result += '$';  // not ours: stays as it is, and what follows is looked at again
      continue;
    }
    result += found->second;
    text.remove_prefix(end + (braced ? 1 : 0));
  }
}

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  std::size_t length = 0;
  unsigned low = 0x80;
  unsigned high = 0xBF;  // of the second byte: no overlong forms, no surrogates, nothing above U+10FFFF
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {1, false, false};
  }
  for (std::size_t at = 1; at < length; ++at) {
    if (at == text.size()) return {at, false, true};
    if (byte(at) < low || byte(at) > high) return {at, false, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true, false};
}

std::string printable_lines(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_character(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    const bool blank = byte == '\n' || byte == '\t';
    const bool control = (byte < 0x20 && !blank) || byte == 0x7F ||
                         (byte == 0xC2 && character.valid && static_cast<unsigned char>(text[1]) < 0xA0);
    for (const char c : text.substr(0, character.length)) {
      if (control || !character.valid)
        fmt::format_to(std::back_inserter(result), "\\x{:02x}", static_cast<unsigned char>(c));
      else
        result += c;
    }
    text.remove_prefix(character.length);
  }
  return result;
}

bool take_start(std::string_view& text, std::string_view start) {
  if (!text.starts_with(start)) return false;
  text.remove_prefix(start.size());
  return true;
}

std::string seconds_text(Duration duration) {
  const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count() / 100;
  return fmt::format("{}.{} s", tenths / 10, tenths % 10);
}

}  // namespace torchup
