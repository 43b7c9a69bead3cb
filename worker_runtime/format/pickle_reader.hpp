#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace torchup {

// What a pickle may cost, whatever its bytes say. A state_dict of 130,000 tensors is within all of them.
inline constexpr std::size_t pickle_bytes_max = std::size_t{64} << 20;
inline constexpr std::size_t pickle_values_max = std::size_t{4} << 20;  ///< values made, and references noted for later
inline constexpr std::size_t pickle_visits_max = std::size_t{1} << 20;  ///< dictionary entries looked at for tensors
inline constexpr std::size_t pickle_names_bytes_max = std::size_t{64} << 20;   ///< of all dotted names together
inline constexpr std::size_t pickle_shape_numbers_max = std::size_t{4} << 20;  ///< sizes and strides under all names
inline constexpr int pickle_depth_max = 32;                                    ///< dictionaries in dictionaries
inline constexpr std::size_t pickle_dimensions_max = 64;                       ///< of one tensor
inline constexpr std::size_t pickle_key_bytes_max = 64;                        ///< of a storage's key

/// A tensor of a torch.save archive: a view of one of the archive's storages, within its bounds.
struct PickledTensor {
  std::string storage;              ///< the storage's key in the archive: "0", "1", …
  std::uint64_t storage_bytes = 0;  ///< its size, as the pickle says; not more than 2^60
  std::string dtype;                ///< torch's name: "float32"
  std::int64_t offset = 0;          ///< in elements, as the strides
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  bool conjugated = false;  ///< the storage holds the conjugates of its numbers, which are complex
  bool negated = false;     ///< the storage holds its numbers with the other sign, which their dtype has

  friend bool operator==(const PickledTensor&, const PickledTensor&) = default;
};

/// The tensors in the pickle of a torch.save archive, with dotted names.
///
/// Knows the opcodes and callables that a state_dict needs, and no others: nothing of what the pickle names is ever
/// called. The pickle is a stranger's: time and memory are bounded by its size and the limits above. Needs no LibTorch.
/// Source of the format: Python's pickletools.py, and torch/serialization.py and torch/_utils.py (_rebuild_tensor_v2,
/// …). Throws Error that says what is not allowed or broken.
std::map<std::string, PickledTensor> tensors_in_pickle(std::string_view pickle);

}  // namespace torchup
