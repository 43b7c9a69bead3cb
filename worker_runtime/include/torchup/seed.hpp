#pragma once

#include <cstdint>
#include <optional>
#include <torchup/process_group.hpp>

namespace torchup {

struct SeedOptions {
  std::uint64_t seed = 0;
  bool per_rank = true;        ///< rank r draws from seed + r: dropout and augmentation differ by rank, as they should
  bool deterministic = false;  ///< same program, same inputs, same bits; throws where an operator cannot
  std::optional<int> threads = {};  ///< intra-op threads; on the CPU their number is part of the bits
};

/// Seeds every generator of LibTorch (CPU and GPUs) and, if asked, makes training reproducible. Collective: every rank
/// of the group calls it. Call it after the model is built or before: DDP sends rank 0's weights to all either way.
///
/// `deterministic` chooses deterministic algorithms, no cuDNN search, no TF32, and CUBLAS_WORKSPACE_CONFIG=:4096:8
/// unless it is set (so call it before anything uses the GPU), and throws Error when ranks differ in seed or number of
/// threads. Returns the seed of this rank, for generators of one's own.
std::uint64_t seed_everything(const SeedOptions& options, const ProcessGroup& group);

}  // namespace torchup
