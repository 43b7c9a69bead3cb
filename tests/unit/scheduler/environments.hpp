#pragma once

#include <map>
#include <string>

#include "launcher/core/scheduler/detection.hpp"
#include "tests/support/fake_machine.hpp"

/// What schedulers set, as the real ones were seen to do.
namespace torchup::environments {

/// `base` with `more` on top; a value "-" takes a variable away.
inline Texts with(Texts base, const Texts& more) {
  for (const auto& [name, value] : more) {
    if (value == "-") {
      base.erase(name);
    } else {
      base[name] = value;
    }
  }
  return base;
}

/// The second node of a step of two, with a task on each, in a job of three nodes (Slurm 22.05).
inline Texts slurm_step(const Texts& more = {}) {
  return with({{"SLURM_CLUSTER_NAME", "c"},
               {"SLURM_JOB_ID", "17"},
               {"SLURM_JOB_NODELIST", "n[1-3]"},
               {"SLURM_JOB_NUM_NODES", "3"},
               {"SLURM_NNODES", "2"},
               {"SLURM_STEP_NUM_NODES", "2"},
               {"SLURM_NTASKS", "2"},
               {"SLURM_STEP_NUM_TASKS", "2"},
               {"SLURM_TASKS_PER_NODE", "1(x2)"},
               {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
               {"SLURM_STEP_NODELIST", "n[1-2]"},
               {"SLURM_STEP_ID", "0"},
               {"SLURM_NODEID", "1"},
               {"SLURM_PROCID", "1"},
               {"SLURM_LOCALID", "0"},
               {"SLURMD_NODENAME", "n2"}},
              more);
}

/// Its batch script, on the first node.
inline Texts slurm_batch(const Texts& more = {}) {
  return with({{"SLURM_CLUSTER_NAME", "c"},
               {"SLURM_JOB_ID", "17"},
               {"SLURM_JOB_NODELIST", "n[1-3]"},
               {"SLURM_JOB_NUM_NODES", "3"},
               {"SLURM_NNODES", "3"},
               {"SLURM_TASKS_PER_NODE", "1(x3)"},
               {"SLURM_NODEID", "0"},
               {"SLURM_PROCID", "0"},
               {"SLURM_LOCALID", "0"},
               {"SLURMD_NODENAME", "n1"}},
              more);
}

/// The third of four processes, two a node.
inline Texts openmpi(const Texts& more = {}) {
  return with({{"OMPI_COMM_WORLD_SIZE", "4"},
               {"OMPI_COMM_WORLD_RANK", "2"},
               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
               {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
               {"PMIX_NAMESPACE", "123.1"}},
              more);
}

/// The second of two processes, one a node (hydra).
inline Texts mpich(const Texts& more = {}) {
  return with({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"MPI_LOCALNRANKS", "1"}, {"MPI_LOCALRANKID", "0"}}, more);
}

/// The third pod of an Indexed Job.
inline Texts kubernetes(const Texts& more = {}) {
  return with({{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}, {"JOB_COMPLETION_INDEX", "2"}}, more);
}

inline SchedulerFacts facts(const Texts& variables, std::string host = "host", Texts files = {}) {
  return {fake_machine(variables).variable,
          [files = std::move(files)](const std::string& path, std::size_t) -> Result<std::string> {
            const auto found = files.find(path);
            if (found == files.end()) return fail(errc::missing_value, path + ": No such file or directory");
            return found->second;
          },
          std::move(host)};
}

/// What `auto`, or another value of --scheduler, finds; "none" has a name too.
inline Allocation found(const SchedulerFacts& facts, std::string_view wanted = "auto") {
  auto result = find_allocation(wanted, facts);
  if (!result) return {.scheduler = "error: " + result.error().message()};
  return *result ? **result : Allocation{.scheduler = "none"};
}
inline Allocation found(const Texts& variables, std::string_view wanted = "auto") {
  return found(facts(variables), wanted);
}

inline std::string refusal(const SchedulerFacts& facts, std::string_view wanted = "auto") {
  const auto result = find_allocation(wanted, facts);
  return result ? "none" : result.error().message();
}
inline std::string refusal(const Texts& variables, std::string_view wanted = "auto") {
  return refusal(facts(variables), wanted);
}

}  // namespace torchup::environments
