#include "launcher/core/scheduler/task_identity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace torchup {
namespace {

/// Of the process managers of MPI.
constexpr std::array<std::string_view, 8> place_prefixes{"PMI_",           "PMI2_",         "PMIX_", "OMPI_COMM_WORLD_",
                                                         "OMPI_MCA_orte_", "OMPI_MCA_ess_", "PALS_", "HYDI_"};
constexpr std::array<std::string_view, 2> place_names{"MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

/// Of a step's task: replaced by the worker's own, or gone.
constexpr std::array<std::string_view, 11> task_names{
    "SLURM_PROCID",         "SLURM_LOCALID",        "SLURM_NODEID",
    "SLURM_NTASKS",         "SLURM_NPROCS",         "SLURM_STEP_NUM_TASKS",
    "SLURM_TASKS_PER_NODE", "SLURM_TASK_PID",       "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_GTIDS",          "SLURM_NTASKS_PER_NODE"};

}  // namespace

bool is_own_place(std::string_view name, const SchedulerPart& scheduler) {
  if (!scheduler.asked) return false;
  if (std::ranges::find(place_names, name) != place_names.end()) return true;
  const auto begins = [&](std::string_view prefix) { return name.starts_with(prefix); };
  if (std::ranges::any_of(place_prefixes, begins)) return true;
  return scheduler.slurm_step && std::ranges::find(task_names, name) != task_names.end();
}

Variables task_variables(const WorkerEnv& worker, bool tasks_per_node) {
  const std::string world = fmt::format("{}", worker.world_size);
  Variables variables{{"SLURM_PROCID", fmt::format("{}", worker.rank.value())},
                      {"SLURM_LOCALID", fmt::format("{}", worker.local_rank.value())},
                      {"SLURM_NODEID", fmt::format("{}", worker.group_rank.value())},
                      {"SLURM_NTASKS", world},
                      {"SLURM_NPROCS", world},
                      {"SLURM_STEP_NUM_TASKS", world}};
  const int here = worker.local_world_size, nodes = worker.group_world_size;
  if (tasks_per_node) variables.emplace_back("SLURM_NTASKS_PER_NODE", fmt::format("{}", here));
  const int before = worker.group_rank.value() * here;
  const bool alike =
      worker.world_size == nodes * here && worker.rank.value() >= before && worker.rank.value() < before + here;
  if (!alike) return variables;
  const std::string counts = nodes == 1 ? fmt::format("{}", here) : fmt::format("{}(x{})", here, nodes);
  variables.emplace_back("SLURM_TASKS_PER_NODE", counts);
  variables.emplace_back("SLURM_STEP_TASKS_PER_NODE", counts);
  return variables;
}

}  // namespace torchup
