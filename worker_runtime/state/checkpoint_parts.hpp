#pragma once

#include <cstddef>
#include <string>
#include <torchup/checkpoint.hpp>

#include "worker_runtime/state/checkpoint_folder.hpp"

namespace torchup {

// A checkpoint's parts by the names of their tensors: model.safetensors has the module's own, training.safetensors the
// others.

inline constexpr const char* rng_cpu = "rng/cpu";  ///< every rank's generator, a row for each
inline constexpr const char* rng_gpu = "rng/gpu";

std::string optimizer_prefix(std::size_t number);
std::string other_prefix(std::size_t number);  ///< of the part with a state_dict that is the `number`-th
std::string rank_prefix(std::size_t number, int rank);

/// Parameters and buffers, by name.
NamedTensors tensors_of(const torch::nn::Module& module);

/// Sets all parts, and the generators, to what was loaded. Throws Error when a part does not fit; parts may be half set
/// then.
void restore_parts(const CheckpointParts& parts, const LoadedCheckpoint& loaded, const ProcessGroup& group);

}  // namespace torchup
