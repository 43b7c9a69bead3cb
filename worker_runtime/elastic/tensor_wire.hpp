#pragma once

#include <torch/types.h>

#include <span>
#include <torchup/process_group.hpp>
#include <vector>

namespace torchup {

/// Sends tensors of one rank of `group` to all others, in place, without a copy where that can be: large ones in chunks
/// of 64 MiB, smaller ones of a type together, a few under way at a time. Collective; `tensors` are of the same dtypes
/// and shapes on all ranks, each on the group's device or on the CPU, and of any memory layout.
///
/// `keep` false: this rank takes part and nothing of its own changes; it may have sent the same, or needs it not.
void broadcast_state(std::span<const torch::Tensor> tensors, const ProcessGroup& group, int root, bool keep);

/// 64 bits of tensors in their order: equal bits have equal sums. One wait for a GPU, none for each tensor.
std::int64_t checksum(std::span<const torch::Tensor> tensors);

}  // namespace torchup
