#pragma once

#include <torch/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "worker_runtime/place/device_choice.hpp"

namespace torchup {

/// What a backend is made of. `store` is already private to the group and its device type.
struct BackendPlan {
  c10::intrusive_ptr<c10d::Store> store;
  int rank;
  int size;
  std::chrono::milliseconds timeout;
  /// Longest time for the connections alone, where that can be told apart.
  std::optional<std::chrono::milliseconds> connect_limit;
  torch::Device device;
  std::string group_name;
  std::vector<int> global_ranks;
  std::string master_addr;  ///< rank 0's node; empty where nobody said it
  bool several_nodes;       ///< ranks of the job are on other nodes
};

/// Each backend's header is included in one file only: gloo's drags gloo in, NCCL's the whole of CUDA.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendPlan& plan);
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendPlan& plan);  ///< throws Error in a CPU build

/// What LibTorch's recorder has of the backends' calls, as JSON. Throws what LibTorch throws.
std::string gloo_recorder_text();
std::string nccl_recorder_text();  ///< empty in a CPU build

VisibleGpus visible_gpus();  ///< GPUs that this process may use; none in a CPU build or without a driver
void bind_gpu(const torch::Device& device);  ///< makes it the current one, before anything else touches CUDA
/// The same text in every process that means this GPU, or this part of one. Empty where the user told NCCL that ranks
/// share a GPU (NCCL_MULTI_RANK_GPU_ENABLE, NCCL_HOSTID): then there is nothing to compare.
std::string gpu_identity(const torch::Device& device);

}  // namespace torchup
