#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace torchup {

inline constexpr std::uint64_t safetensors_header_bytes_max = 100'000'000;  ///< the reference's own limit
inline constexpr std::size_t safetensors_dimensions_max = 64;               ///< of one tensor
inline constexpr std::size_t safetensors_tensors_max = std::size_t{1} << 19;
inline constexpr std::size_t safetensors_values_max = std::size_t{1}
                                                      << 16;  ///< of a tensor or the metadata, keys included

/// A tensor of a safetensors file: bytes [begin, end) of what follows the header.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;  ///< the format's name: "F32"
  std::vector<std::int64_t> shape = {};
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  ///< in the order of their data, without gaps and overlaps
  std::map<std::string, std::string> metadata;
};

/// Bytes of one element; 0 for what is no dtype of the format.
std::uint64_t safetensors_element_bytes(std::string_view dtype);

/// Reads the JSON header of a safetensors file of which `data_bytes` follow the header.
///
/// The file is a stranger's: every shape and offset is compared with `data_bytes`, so that nothing can be allocated
/// that the file does not hold, and reading takes a small multiple of the header's own bytes. Needs no LibTorch. Throws
/// Error that says what is wrong, without the file's name. Source: https://github.com/huggingface/safetensors, README,
/// "Format".
SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                           std::size_t tensors_max = safetensors_tensors_max);

}  // namespace torchup
