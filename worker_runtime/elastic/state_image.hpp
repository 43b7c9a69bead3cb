#pragma once

#include <cstdint>
#include <torchup/process_group.hpp>

#include "worker_runtime/elastic/training_state.hpp"

namespace torchup {

// A training state as it goes from rank to rank: what is small as text, tensors as they are, in place.

/// Of parameters and optimizers' tensors, in which replicas must be equal. Looks at every byte.
std::int64_t checksum(const TrainingState& state);

/// Rank `source` sends its state to all others; with `takes` this rank's becomes the same. Collective. Parts that
/// differ by rank are taken by those only that are new.
///
/// Throws Error, before anything is changed, where the model or an optimizer is another one than the source's.
void exchange_state(TrainingState& state, const ProcessGroup& group, int source, bool takes);

}  // namespace torchup
