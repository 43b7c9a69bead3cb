#pragma once

#include <optional>

#include "launcher/core/scheduler/told_words.hpp"

/// The rows of the table of schedulers: each reads the variables of one, or returns nothing where they are not there.
/// Their errors are those of find_allocation.
namespace torchup::scheduler {

using Row = Result<std::optional<Allocation>> (*)(const ToldWords& words);

// mpi_rows.cpp: Open MPI; MPICH and Intel MPI. Hosts, run id and end come from the batch row below them; what tells one
// run of mpiexec there from another stands behind that run id.
Result<std::optional<Allocation>> openmpi_row(const ToldWords& words);
Result<std::optional<Allocation>> mpich_row(const ToldWords& words);

// slurm_rows.cpp: a step of srun that can be believed; else the job, as its batch script or a shell sees it.
Result<std::optional<Allocation>> slurm_step_row(const ToldWords& words);
Result<std::optional<Allocation>> slurm_job_row(const ToldWords& words);

// pod_rows.cpp: containers that know their index.
Result<std::optional<Allocation>> volcano_row(const ToldWords& words);
Result<std::optional<Allocation>> kubernetes_row(const ToldWords& words);

// cloud_rows.cpp
Result<std::optional<Allocation>> sagemaker_row(const ToldWords& words);
Result<std::optional<Allocation>> azureml_row(const ToldWords& words);
Result<std::optional<Allocation>> skypilot_row(const ToldWords& words);

// batch_rows.cpp: batch systems whose jobs begin on the first of their hosts.
Result<std::optional<Allocation>> lsf_row(const ToldWords& words);
Result<std::optional<Allocation>> pbs_row(const ToldWords& words);
Result<std::optional<Allocation>> sge_row(const ToldWords& words);

}  // namespace torchup::scheduler
