#pragma once

#include <string>
#include <string_view>

#include "launcher/core/machine/machine.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

/// Where to look. The values are those of a real system but in tests.
struct GpuQuery {
  std::string program = "/proc/self/exe";  ///< a torchup
  std::string library = "libnvidia-ml.so.1";
  bool driver_check = true;  ///< answer "no driver" without a child when there is no trace of one
  Duration limit = std::chrono::seconds{10};
};

/// What torchup is started with, as its first argument, to be that helper; the library is the second. No user types it.
inline constexpr std::string_view nvml_word = "torchup: ask NVML";
/// The helper's whole life: asks the library, writes the answer to stdout. Returns its exit code.
[[nodiscard]] int answer_about_gpus(const std::string& library);

/// Asks the NVIDIA driver through NVML which GPUs there are.
///
/// In a helper that ends right after (torchup itself, started again): the library costs some 20 MB and threads of its
/// own, and a driver that hangs hangs there. It is killed at the limit, and left to the reaper when not even that ends
/// it. Call it before threads are started.
[[nodiscard]] Gpus read_gpus(const GpuQuery& query = {});

}  // namespace torchup
