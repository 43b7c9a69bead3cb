#pragma once

#include <cstdint>
#include <string_view>

namespace torchup {

/// FNV-1a: against damage, not against people.
[[nodiscard]] constexpr std::uint64_t checksum(std::string_view bytes) {
  std::uint64_t sum = 0xcbf29ce484222325u;
  for (const char byte : bytes) sum = (sum ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return sum;
}

}  // namespace torchup
