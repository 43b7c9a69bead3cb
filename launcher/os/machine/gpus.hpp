#pragma once

#include <string>

#include "launcher/core/machine/machine.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

/// Where to look. The values are those of a real system but in tests.
struct GpuQuery {
  std::string library = "libnvidia-ml.so.1";
  bool driver_check = true;  ///< answer "no driver" without a child when there is no trace of one
  Duration limit = std::chrono::seconds{10};
};

/// Asks the NVIDIA driver through NVML which GPUs there are.
///
/// In a child that ends right after: the library costs some 20 MB and threads of its own, and a driver that hangs
/// hangs there. The child is killed at the limit, and left to the reaper when not even that ends it.
/// Call it before threads are started (the child loads a library between fork and its end).
[[nodiscard]] Gpus read_gpus(const GpuQuery& query = {});

}  // namespace torchup
