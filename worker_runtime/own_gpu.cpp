#include "worker_runtime/own_gpu.hpp"

#include "worker_runtime/backend_factory.hpp"

namespace torchup {

std::optional<torch::Device> own_gpu(const WorkerPlace& place) {
  const int gpus = gpu_count();
  if (gpus == 0) return std::nullopt;
  if (gpus > place.local_rank) return torch::Device{torch::kCUDA, static_cast<c10::DeviceIndex>(place.local_rank)};
  // Launchers that show each process its own GPU only.
  if (gpus == 1 && environment_variable("CUDA_VISIBLE_DEVICES")) return torch::Device{torch::kCUDA, 0};
  return std::nullopt;
}

}  // namespace torchup
