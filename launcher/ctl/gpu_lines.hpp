#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "launcher/core/machine/machine.hpp"
#include "launcher/core/text/json.hpp"

namespace torchup {

/// What is known of a process that has memory of a GPU, beside what the driver says.
struct HolderFacts {
  std::string user;
  std::string run_id;  ///< of the job whose worker it is, or whose worker has started it; empty: it is none's
  std::optional<int> rank;
};
using HoldersByPid = std::map<std::int64_t, HolderFacts>;

/// The run id and rank in a process's environment, as /proc has it: that of a worker, or of what one has started.
[[nodiscard]] HolderFacts holder_of_environment(const std::string& environment);

/// `{"gpus": […]}`, or `{"gpus": [], "reason": "…"}`. Pure.
[[nodiscard]] json gpus_json(const Gpus& gpus, const HoldersByPid& holders);
/// Lines as `nvidia-smi -L` has them, below each its holders; a sentence where there are no GPUs. Pure.
[[nodiscard]] std::string gpus_text(const Gpus& gpus, const HoldersByPid& holders);

}  // namespace torchup
