#pragma once

#include <torch/types.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace torchup {

/// What a backend is made of. `store` is already private to the group and its device type.
struct BackendPlan {
  c10::intrusive_ptr<c10d::Store> store;
  int rank;
  int size;
  std::chrono::milliseconds timeout;
  torch::Device device;
  std::string group_name;
  std::vector<int> global_ranks;
  std::string master_addr;  ///< rank 0's node; empty where nobody said it
  bool several_nodes;       ///< ranks of the job are on other nodes
};

/// Each backend's header is included in one file only: gloo's drags gloo in, NCCL's the whole of CUDA.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendPlan& plan);
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendPlan& plan);  ///< throws Error in a CPU build

int gpu_count();                             ///< GPUs that this process may use; 0 in a CPU build or without a driver
void bind_gpu(const torch::Device& device);  ///< makes it the current one, before anything else touches CUDA

}  // namespace torchup
