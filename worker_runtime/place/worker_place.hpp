#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace torchup {

/// Where this process stands in its job, and where the job's processes meet.
struct WorkerPlace {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;            ///< index on its node
  int local_size = 1;            ///< processes of the job on its node; at least so many where the launcher does not say
  std::string master_addr = {};  ///< empty when nobody has to be met
  int master_port = 0;
  int restart_count = 0;            ///< of the launcher
  bool agent_store = false;         ///< a launcher's agent serves the store at master_addr:master_port
  std::string launcher = "nobody";  ///< who set the ranks: "torchup or torchrun", "Slurm", "Open MPI", "PMI", "nobody"

  friend bool operator==(const WorkerPlace&, const WorkerPlace&) = default;
};

/// What the caller of init_process_group said, which may be less than everything.
struct AskedPlace {
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  std::optional<int> local_rank = {};
};

/// The value of an environment variable, or nothing when it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(std::string_view name)>;
std::optional<std::string> environment_variable(std::string_view name);  ///< the real one

/// Reads the place from the environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT of torchup and torchrun first, then
/// the ranks of Open MPI (OMPI_COMM_WORLD_*), PMI (PMI_RANK, …) and Slurm (SLURM_PROCID, only inside a step of srun: a
/// batch script has the variable too and runs once). What `asked` says completes the environment and must not
/// contradict it.
///
/// Nothing at all set or asked: rank 0 of 1. Throws Error when something is missing or contradicts, with the remedy.
WorkerPlace worker_place_from_environment(const AskedPlace& asked, const EnvironmentLookup& lookup);

/// The same for tcp:// and file://, where the meeting point is given: `asked` wins, the environment completes it.
WorkerPlace worker_place_at(const AskedPlace& asked, const EnvironmentLookup& lookup);

}  // namespace torchup
