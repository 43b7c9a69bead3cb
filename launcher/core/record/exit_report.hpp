#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/text/signals.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup {

/// Turns microseconds since 1970 into local time as `2026-11-21_04:03:58`. The time zone is not the core's to know.
using LocalTime = std::function<std::string(std::int64_t utc_us)>;

/// `rank 3 was killed by SIGKILL`, `rank 3 failed with exit code 7`.
[[nodiscard]] std::string failure_text(const WorkerFailure& failure);

/// Exit code of a launcher whose job has ended so. `propagate`: the root cause's own (as a shell shows it) instead
/// of 1.
[[nodiscard]] int launcher_exit_code(const Verdict& verdict, bool propagate);

/// What all nodes tell of, the job's root cause in front; then what only this node knows: its workers that were
/// stopped.
[[nodiscard]] std::vector<WorkerFailure> all_failures(const Verdict& verdict, const std::vector<WorkerFailure>& local);
/// The same verdict with all of them, where it is one of failures: by this the exit code is found.
[[nodiscard]] Verdict whole_verdict(Verdict verdict, const std::vector<WorkerFailure>& local);

/// Where outputs of several nodes are merged: who tells how the job came out.
struct Teller {
  std::string host;           ///< of this node, as failures have it
  std::string first;          ///< of node 0; empty: not known
  bool is_first = true;       ///< this is the last round's group rank 0; where there was no round, node 0
  bool behind_front = false;  ///< of a fan-out, which may have to do without its first host
  bool left = false;  ///< it leaves a job that others may go on with: it has the report only where it is told so
};
/// What this node says instead of the report, which is that of Verdict::reporter; where nobody said who that is, of the
/// first failure's node, or the first node's where nothing has failed. Nothing: it is this one's.
[[nodiscard]] std::optional<std::string> words_of_bystander(const Verdict& verdict, int exit_code,
                                                            const Teller& teller);
/// Whether this node has the report, and with it writes the files that all nodes share.
[[nodiscard]] bool has_report(const Verdict& verdict, const Teller& teller);

/// torchrun's failure report, byte for byte: begins with an empty line, ends with the lower ruler without line end.
///
/// `name` is the program's as the title shows it; `failures` as in Verdict, at least one. `message` is shown as it is
/// (see traceback_of in error_file.hpp); empty stands for the hint how to enable it, or the signal's text.
/// Source: torch/distributed/elastic/multiprocessing/errors/__init__.py, ChildFailedError.format_msg.
[[nodiscard]] std::string exit_report(std::string_view name, const std::vector<WorkerFailure>& failures,
                                      const LocalTime& local_time);

/// What a worker's end without error file says: `Signal 9 (SIGKILL) received by PID 7`, or the hint how to enable
/// tracebacks.
[[nodiscard]] std::string default_failure_message(int exit_code, std::int64_t pid);

}  // namespace torchup
