#pragma once

#include <torch/types.h>

#include <optional>

#include "worker_runtime/worker_place.hpp"

namespace torchup {

/// The GPU that belongs to this process by its local rank, or nothing when it has none of its own.
std::optional<torch::Device> own_gpu(const WorkerPlace& place);

}  // namespace torchup
