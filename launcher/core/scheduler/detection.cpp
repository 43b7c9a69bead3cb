#include "launcher/core/scheduler/detection.hpp"

#include <fmt/format.h>

#include <array>

#include "launcher/core/scheduler/rows.hpp"

namespace torchup {
namespace {

struct NamedRow {
  std::string_view name;
  scheduler::Row read;
  std::string_view needs;  ///< variables, for whoever asks for a row that does not apply
};

/// Innermost first: what started our process is nearer to it than what started that.
constexpr std::array rows{
    NamedRow{"openmpi", scheduler::openmpi_row, "OMPI_COMM_WORLD_SIZE"},
    NamedRow{"mpich", scheduler::mpich_row, "MPI_LOCALNRANKS and PMI_RANK"},
    NamedRow{"slurm", scheduler::slurm_step_row, "SLURM_JOB_ID"},
    NamedRow{"volcano", scheduler::volcano_row, "VC_TASK_INDEX, MASTER_ADDR, RANK and WORLD_SIZE"},
    NamedRow{"kubernetes", scheduler::kubernetes_row, "KUBERNETES_SERVICE_HOST and JOB_COMPLETION_INDEX"},
    NamedRow{"sagemaker", scheduler::sagemaker_row, "SM_HOSTS and SM_CURRENT_HOST"},
    NamedRow{"azureml", scheduler::azureml_row, "AZUREML_NODE_COUNT, NODE_RANK and MASTER_ADDR"},
    NamedRow{"skypilot", scheduler::skypilot_row, "SKYPILOT_NODE_RANK and SKYPILOT_NODE_IPS"},
    NamedRow{"slurm", scheduler::slurm_job_row, "SLURM_JOB_ID"},
    NamedRow{"lsf", scheduler::lsf_row, "LSB_JOBID"},
    NamedRow{"pbs", scheduler::pbs_row, "PBS_NODEFILE"},
    NamedRow{"sge", scheduler::sge_row, "PE_HOSTFILE"},
};

/// Whether some launcher, ours or torchrun, has started us as a worker.
bool is_worker(const scheduler::ToldWords& words) {
  return words.has("TORCHELASTIC_RUN_ID") && words.has("LOCAL_RANK");
}

/// A worker may submit a job or start a step, whose processes inherit a worker's variables: they are those of the step
/// that the worker's own launcher has met in, and is named after, while theirs has another name.
bool is_another_step(const scheduler::ToldWords& words, const Allocation& found) {
  const std::string workers = words.text("TORCHELASTIC_RUN_ID").value_or("");
  return found.each && found.run_id && workers.starts_with(found.scheduler + ".") && workers != found.run_id->value;
}

}  // namespace

Result<std::optional<Allocation>> find_allocation(std::string_view wanted, const SchedulerFacts& facts) {
  const scheduler::ToldWords words{facts};
  const bool any = wanted == "auto";
  if (wanted == "none") return std::optional<Allocation>{};
  const bool in_worker = any && is_worker(words);
  std::string_view needs;
  for (const NamedRow& row : rows) {
    if (!any && row.name != wanted) continue;
    needs = row.needs;
    auto found = row.read(words);
    // A worker's own variables may say of the scheduler's what they like.
    if (in_worker && (!found || (*found && !is_another_step(words, **found)))) return std::optional<Allocation>{};
    if (!found || *found) return found;
  }
  if (any) return std::optional<Allocation>{};
  return fail(errc::bad_value, fmt::format("--scheduler={}: the environment lacks its variables: {}", wanted, needs));
}

}  // namespace torchup
