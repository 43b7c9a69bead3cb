#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace torchup {

/// Tensors by name, in the order in which they are to lie in a file.
using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

struct SafetensorsFile {
  std::map<std::string, torch::Tensor> tensors;  ///< on the CPU, contiguous
  std::map<std::string, std::string> metadata;
};

/// Size and checksum of a file as it was written.
struct WrittenFile {
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;  ///< of all bytes; Python's zlib.crc32 gives the same
};

/// Writes `tensors` in the safetensors format, which Python's library reads (`safetensors.torch.load_file`).
///
/// The file appears under `path` whole and on disk, or not at all. Tensors of any device and layout; they are stored
/// contiguous. Throws Error, which names the file, when it cannot be written, two names are alike, or a dtype has no
/// name in the format (quantised, sparse).
WrittenFile save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                             const std::map<std::string, std::string>& metadata = {});

/// Reads a safetensors file of any origin. Throws Error, which names the file and what is wrong with it, when it cannot
/// be read or is not one: every length and offset is checked before anything is allocated.
SafetensorsFile load_safetensors(const std::filesystem::path& path);

}  // namespace torchup
