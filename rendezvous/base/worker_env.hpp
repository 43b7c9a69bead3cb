#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

/// What a completed round means to one worker: the environment contract, the one place that knows its names.
///
/// The launcher writes it with `to_variables`, the worker runtime reads it with `read_worker_env`.
/// Source: torchrun's contract, torch/distributed/elastic/agent/server/local_elastic_agent.py.
struct WorkerEnv {
  Rank rank{0};
  LocalRank local_rank{0};
  GroupRank group_rank{0};
  Rank role_rank{0};  ///< index among all workers with the same role name
  std::string role_name = "default";
  int local_world_size = 1;  ///< workers on this node, >= 1
  int world_size = 1;        ///< workers in the group, >= 1
  int group_world_size = 1;  ///< nodes in the round, >= 1
  int role_world_size = 1;   ///< workers with this role name, >= 1
  std::string master_addr;   ///< host name or address without brackets
  Port master_port{0};
  int restart_count = 0;  ///< restarts after worker failures so far
  int max_restarts = 0;
  std::string run_id;
  bool use_agent_store = false;  ///< the agent serves the store at master_addr:master_port; no worker may bind it
  std::string error_file;        ///< where the worker may leave its last words; empty: nowhere

  friend bool operator==(const WorkerEnv&, const WorkerEnv&) = default;
};

/// Names and values for the environment of one worker, in a fixed order.
///
/// TORCHELASTIC_USE_AGENT_STORE is spelt `True` or `False`, as PyTorch compares it.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> to_variables(const WorkerEnv& env);

/// The value of a variable, or nothing when it is not set.
using VariableLookup = std::function<std::optional<std::string>(std::string_view name)>;

/// Reads the contract back. Nothing when none of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT is set: the program was
/// started alone.
///
/// Those four are needed together, as in PyTorch's env:// rendezvous. The others have defaults: LOCAL_WORLD_SIZE is
/// WORLD_SIZE (one machine), LOCAL_RANK is RANK modulo LOCAL_WORLD_SIZE, the rest as in WorkerEnv.
///
/// Errors: errc::missing_value when some of the four are set and others not (names them); errc::bad_value when one is
/// not a number, or the numbers contradict each other (rank >= world size, …).
[[nodiscard]] Result<std::optional<WorkerEnv>> read_worker_env(const VariableLookup& lookup);

}  // namespace torchup
