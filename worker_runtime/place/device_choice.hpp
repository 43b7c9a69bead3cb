#pragma once

#include <optional>
#include <string>

#include "worker_runtime/place/worker_place.hpp"

namespace torchup {

/// GPUs as this process sees them.
struct VisibleGpus {
  int count = 0;
  std::optional<std::string> chosen = {};  ///< CUDA_VISIBLE_DEVICES, where it is set
};

/// What the program asked for.
struct DeviceWish {
  enum class Kind { automatic, cpu, gpu };
  Kind kind = Kind::automatic;
  std::optional<int> index = {};  ///< of the GPU, where it was said
  std::string backend = "auto";   ///< "auto", "gloo", "nccl"
};

/// This worker's part of a decision that all ranks take together: with nccl if all of them can, else with gloo.
struct DeviceChoice {
  std::optional<int> gpu = {};  ///< the index of the GPU that is this worker's own, or that it asked for
  bool offers_nccl = false;
  bool offers_gloo = true;
};

/// The GPU that belongs to a worker: the one with its local rank, where there is one for each worker of the node; the
/// only visible one, where the launcher shows each worker its own (CUDA_VISIBLE_DEVICES names just one). Otherwise
/// none: more workers than GPUs is a job on the CPU.
std::optional<int> own_gpu(const WorkerPlace& place, const VisibleGpus& gpus);

/// The one place where it is decided what a worker computes on. Pure. Throws Error where the wish contradicts itself or
/// the machine.
DeviceChoice choose_device(const DeviceWish& wish, const WorkerPlace& place, const VisibleGpus& gpus);

}  // namespace torchup
