#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace torchup {

/// Bytes of the storage with this key ("0", "1", …). Throws when there is none of that size.
using StorageReader = std::function<torch::Storage(const std::string& key, std::uint64_t bytes)>;

/// The tensors in the pickle of a torch.save archive, with dotted names.
///
/// Knows the opcodes and callables that a state_dict needs, and no others: nothing of what the pickle names is ever
/// called. Source of the format: Python's pickletools.py, and torch/serialization.py and torch/_utils.py
/// (_rebuild_tensor_v2, …). Throws Error that says what is not allowed or broken.
std::map<std::string, torch::Tensor> tensors_in_pickle(std::string_view pickle, const StorageReader& storage);

}  // namespace torchup
