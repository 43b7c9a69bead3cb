#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/scheduler/allocation.hpp"

namespace torchup {

/// Reads what the scheduler around us says; `wanted` is a value of --scheduler. `auto` takes the innermost whose
/// variables are there, and none inside a worker of another launcher: those variables are that launcher's place then,
/// unless they name another step than its run id.
/// Where processes are MPI's, hosts, run id and end are those of the batch job around them.
///
/// A Slurm step is believed where its variables agree with each other and with this host, else the job is taken: a job
/// that is submitted from within a step inherits that step's variables.
///
/// Errors: errc::bad_value, one line that names variable and value: a number that is none, values that contradict each
/// other; a `wanted` scheduler that is not there.
[[nodiscard]] Result<std::optional<Allocation>> find_allocation(std::string_view wanted, const SchedulerFacts& facts);

}  // namespace torchup
