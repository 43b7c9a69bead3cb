#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/options/launch_config.hpp"
#include "rendezvous/base/worker_env.hpp"

namespace torchup {

/// Name of the variable that may hold the job's secret; it never reaches a worker.
inline constexpr std::string_view token_variable = "TORCHUP_TOKEN";
/// The address of group rank 0's node, also where MASTER_ADDR is this node's own (--store-proxy).
inline constexpr std::string_view master_addr_variable = "TORCHUP_MASTER_ADDR";

/// The place of one worker, as its variables tell it.
[[nodiscard]] WorkerEnv worker_env(const LaunchConfig& config, const Placement& placement, LocalRank local_rank,
                                   std::string error_file);

/// Builds the workers' environments: ours, with the contract's variables set or replaced.
class WorkerEnvironment {
 public:
  /// `inherited` is our own environment, "NAME=value" each. `hook`: the folder that stands first where Python looks for
  /// modules; empty: none.
  WorkerEnvironment(const LaunchConfig& config, const std::vector<std::string>& inherited, std::string_view hook = {});

  /// What all workers have alike, "NAME=value" each. One copy for all of them.
  [[nodiscard]] std::shared_ptr<const std::vector<std::string>> common() const { return common_lines_; }
  /// What one worker has besides.
  [[nodiscard]] std::vector<std::string> own(const Placement& placement, LocalRank local_rank,
                                             std::string error_file) const;
  /// All that is set or replaced, for --print-env and --dry-run.
  [[nodiscard]] Variables changes(const Placement& placement, LocalRank local_rank, std::string error_file) const;

 private:
  [[nodiscard]] Variables own_variables(const Placement& placement, LocalRank local_rank, std::string error_file) const;

  const LaunchConfig& config_;
  bool tasks_per_node_ = false;                                   ///< Slurm's count of them is inherited
  Variables common_;                                              ///< set for every worker
  std::shared_ptr<const std::vector<std::string>> common_lines_;  ///< and what is inherited
};

}  // namespace torchup
