#pragma once

#include <cstddef>
#include <cstdint>

namespace torchup {

/// CRC-32 as of zlib, by zlib (as Python's zlib.crc32, so that anybody can check our files): `crc` of what came before,
/// 0 at first.
[[nodiscard]] std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t size);

}  // namespace torchup
