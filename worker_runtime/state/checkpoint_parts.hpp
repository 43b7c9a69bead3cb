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

/// What rank 0 stores of all ranks. On the others it may be empty.
struct Gathered {
  torch::Tensor cpu_states;  ///< of the generators, a row for each rank
  torch::Tensor gpu_states;  ///< undefined where the module is on no GPU
  NamedTensors others;       ///< of the parts with a state_dict
};
/// Collective.
Gathered gather(const CheckpointParts& parts, const ProcessGroup& group);

/// Sets all parts, and the generators, to what was loaded. Throws Error when a part does not fit; parts may be half set
/// then.
void restore_parts(const CheckpointParts& parts, const LoadedCheckpoint& loaded, const ProcessGroup& group);

}  // namespace torchup
