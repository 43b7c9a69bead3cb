#include "worker_runtime/state/crc32.hpp"

// zlib's is the fastest that we know. A project of a user's may be built where its headers are not.
#if __has_include(<zlib.h>) && !defined(TORCHUP_WITHOUT_ZLIB)
#include <zlib.h>

namespace torchup {

std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t size) {
  if (size == 0) return crc;  // zlib takes a null pointer, which a tensor without elements has, for the wish to begin
  return static_cast<std::uint32_t>(::crc32_z(crc, static_cast<const Bytef*>(data), size));
}

}  // namespace torchup
#else
#include <array>
#include <bit>
#include <cstring>

namespace torchup {
namespace {

/// `table[n][byte]`: what a byte does to the checksum when n further bytes follow it.
using CrcTables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr CrcTables crc_tables = [] {
  constexpr std::uint32_t polynomial = 0xedb88320;
  CrcTables made{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ polynomial : crc >> 1;
    made[0][byte] = crc;
  }
  for (std::size_t further = 1; further < made.size(); ++further) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = made[further - 1][byte];
      made[further][byte] = before >> 8 ^ made[0][before & 0xff];
    }
  }
  return made;
}();
static_assert(std::endian::native == std::endian::little);

}  // namespace

std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; size >= 8; size -= 8, bytes += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, bytes, sizeof eight);
    eight ^= crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= crc_tables[7 - i][eight >> 8 * i & 0xff];
  }
  for (; size > 0; --size, ++bytes) crc = crc >> 8 ^ crc_tables[0][(crc ^ *bytes) & 0xff];
  return ~crc;
}

}  // namespace torchup
#endif
