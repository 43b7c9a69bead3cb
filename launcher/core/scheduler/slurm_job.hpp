#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/options/launch_config.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/base/worker_env.hpp"

/// What Slurm's commands are asked about the job that we run in, and what they answer.
namespace torchup {

/// Of an answer.
inline constexpr std::size_t slurm_answer_bytes_max = std::size_t{256} << 10;
/// How often a job may have come back to the queue.
inline constexpr std::int64_t requeues_max = 1 << 20;

/// A job as the commands know it.
struct SlurmJob {
  std::string id;    ///< "17", of an array "12_3": the array's last task has the array's own number
  int restarts = 0;  ///< so often it came back to the queue
  friend bool operator==(const SlurmJob&, const SlurmJob&) = default;
};

/// The job around us; nothing where there is none. Errors: errc::bad_value, as find_allocation's.
[[nodiscard]] Result<std::optional<SlurmJob>> slurm_job(const VariableLookup& variable);

/// What `squeue -h -o %L` has printed: how long the job may go on, nothing: as long as it likes. Of several lines, a
/// heterogeneous job's, the shortest time.
///
/// Errors: errc::bad_value for anything else.
[[nodiscard]] Result<std::optional<Duration>> read_time_left(std::string_view text);

/// What `scontrol show job -o` has printed of it.
struct SlurmJobState {
  std::string state;       ///< "RUNNING"
  bool preempted = false;  ///< it has been told to make room for another
  friend bool operator==(const SlurmJobState&, const SlurmJobState&) = default;
};
/// A job's name and comment stand there too and may hold anything: where a field is there more than once, and not with
/// the same value, it says nothing.
///
/// Errors: errc::bad_value where no state is told.
[[nodiscard]] Result<SlurmJobState> read_job_state(std::string_view text);

/// Why the job does not go back into the queue; empty: it is to. `saved`: it has ended with 75; else by SIGTERM, as one
/// does that makes room for another. A job that somebody has cancelled runs no longer, and would come back.
[[nodiscard]] std::string why_no_requeue(const RequeueConfig& requeue, const SlurmJobState& job, bool saved);

}  // namespace torchup
