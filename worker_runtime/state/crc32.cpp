#include "worker_runtime/state/crc32.hpp"

#include <zlib.h>

namespace torchup {

std::uint32_t crc32(std::uint32_t crc, const void* data, std::size_t size) {
  if (size == 0) return crc;  // zlib takes a null pointer, which a tensor without elements has, for the wish to begin
  return static_cast<std::uint32_t>(::crc32_z(crc, static_cast<const Bytef*>(data), size));
}

}  // namespace torchup
