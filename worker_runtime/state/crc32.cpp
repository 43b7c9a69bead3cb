#include "worker_runtime/state/crc32.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace torchup {

namespace {

// Sixteen bytes per round by sixteen tables ("slicing"): 2 to 3 GB/s, faster than the disks that checkpoints go to.
constexpr std::size_t slices = 16;
using Tables = std::array<std::array<std::uint32_t, 256>, slices>;

constexpr Tables make_tables() {
  constexpr std::uint32_t polynomial = 0xEDB88320;
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? polynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t slice = 1; slice < slices; ++slice) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[slice - 1][byte];
      tables[slice][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables tables = make_tables();

}  // namespace

std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t size) {
  static_assert(std::endian::native == std::endian::little);
  const auto* bytes = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; size >= slices; size -= slices, bytes += slices) {
    std::array<std::uint32_t, 4> words;
    std::memcpy(words.data(), bytes, slices);
    words[0] ^= crc;
    crc = 0;
    for (std::size_t word = 0; word < 4; ++word) {
      for (std::size_t byte = 0; byte < 4; ++byte) {
        crc ^= tables[slices - 1 - 4 * word - byte][(words[word] >> (8 * byte)) & 0xFF];
      }
    }
  }
  for (; size > 0; --size, ++bytes) crc = (crc >> 8) ^ tables[0][(crc ^ *bytes) & 0xFF];
  return ~crc;
}

}  // namespace torchup
