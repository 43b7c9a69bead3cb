// The header of a safetensors file, from whomever: refused with our Error, or its tensors are exactly the file's data.
//
// Input: eight bytes, how many bytes follow the header (in a file they say how long the header is); then the header.
#include <cstring>
#include <torchup/error.hpp>

#include "tests/fuzz/fuzz.hpp"
#include "worker_runtime/format/safetensors_header.hpp"

using namespace torchup;

namespace {

/// Bytes of the tensor; each side was compared with the file's data, so that no product overflows.
std::uint64_t bytes_of(const SafetensorsEntry& tensor) {
  std::uint64_t bytes = safetensors_element_bytes(tensor.dtype);
  for (const std::int64_t side : tensor.shape) {
    fuzz::require(side >= 0 && !__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(side), &bytes));
  }
  return bytes;
}

void check(const SafetensorsHeader& header, std::uint64_t data_bytes) {
  std::uint64_t offset = 0;
  for (const SafetensorsEntry& tensor : header.tensors) {
    fuzz::require(tensor.shape.size() <= safetensors_dimensions_max && safetensors_element_bytes(tensor.dtype) > 0);
    fuzz::require(tensor.begin == offset && tensor.end == offset + bytes_of(tensor));
    offset = tensor.end;
  }
  fuzz::require(offset == data_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::uint64_t data_bytes = 0;
  if (size < sizeof data_bytes) return 0;
  std::memcpy(&data_bytes, data, sizeof data_bytes);
  const std::string_view text{reinterpret_cast<const char*>(data) + sizeof data_bytes, size - sizeof data_bytes};
  try {
    check(parse_safetensors_header(text, data_bytes), data_bytes);
  } catch (const Error&) {  // refused
  }
  return 0;
}
