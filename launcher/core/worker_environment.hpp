#pragma once

#include <string>
#include <vector>

#include "launcher/core/launch_config.hpp"
#include "rendezvous/base/worker_env.hpp"

namespace torchup {

/// Name of the variable that may hold the job's secret; it never reaches a worker.
inline constexpr std::string_view token_variable = "TORCHUP_TOKEN";

/// The place of one worker, as its variables tell it.
[[nodiscard]] WorkerEnv worker_env(const LaunchConfig& config, const Placement& placement, LocalRank local_rank,
                                   std::string error_file);

/// Builds the environments of one attempt's workers: ours, with the contract's variables set or replaced.
class WorkerEnvironment {
 public:
  /// `inherited` is our own environment, "NAME=value" each.
  WorkerEnvironment(const LaunchConfig& config, const std::vector<std::string>& inherited);

  /// "NAME=value" each, for execve.
  [[nodiscard]] std::vector<std::string> for_worker(const Placement& placement, LocalRank local_rank,
                                                    std::string error_file) const;
  /// Only what is set or replaced, for --print-env and --dry-run.
  [[nodiscard]] Variables changes(const Placement& placement, LocalRank local_rank, std::string error_file) const;

 private:
  const LaunchConfig& config_;
  std::vector<std::string> inherited_;  ///< without what is set for every worker
  Variables common_;
};

}  // namespace torchup
