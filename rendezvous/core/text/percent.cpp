#include "rendezvous/core/text/percent.hpp"

#include <charconv>
#include <cstdint>

namespace torchup {
namespace {

constexpr std::string_view plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
constexpr std::string_view digits = "0123456789ABCDEF";

}  // namespace

std::string percent_encoded(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    if (plain.find(c) != std::string_view::npos) {
      encoded += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded += {'%', digits[byte >> 4U], digits[byte & 15U]};
  }
  return encoded;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      decoded += text[at];
      continue;
    }
    const std::string_view two = text.substr(at + 1, 2);
    std::uint8_t byte = 0;
    const auto [end, error] = std::from_chars(two.data(), two.data() + two.size(), byte, 16);
    if (two.size() != 2 || error != std::errc{} || end != two.data() + 2) return std::nullopt;
    decoded += static_cast<char>(byte);
    at += 2;
  }
  return decoded;
}

}  // namespace torchup
