#pragma once

#include <string_view>

#include "launcher/core/options/launch_config.hpp"
#include "rendezvous/base/worker_env.hpp"

namespace torchup {

/// Whether a variable of our environment tells our own place among MPI's processes or Slurm's tasks, which is none of a
/// worker's: with it a worker's MPI would take itself for us, and all of them for one process.
[[nodiscard]] bool is_own_place(std::string_view name, const SchedulerPart& scheduler);

/// Slurm's variables as they were if each worker were a task of the step: programs that read them see the places that
/// they would have under srun alone. Where nodes differ in their workers, the count of tasks per node is left out.
/// `tasks_per_node`: SLURM_NTASKS_PER_NODE is set for us.
[[nodiscard]] Variables task_variables(const WorkerEnv& worker, bool tasks_per_node);

}  // namespace torchup
