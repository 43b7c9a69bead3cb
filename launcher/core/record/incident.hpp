#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/record/cause_words.hpp"
#include "launcher/core/record/exit_report.hpp"
#include "launcher/core/record/run_record.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup {

/// What was found out about one death beyond its exit code. All of it is optional evidence.
struct DeathEvidence {
  /// Kills by the out-of-memory killer in the workers' memory cgroup during the attempt; empty when not readable.
  std::optional<std::int64_t> oom_kills;
  std::optional<std::int64_t> machine_oom_kills;   ///< on the whole machine in that time
  std::optional<std::int64_t> memory_limit_bytes;  ///< of that cgroup; empty: none or unknown
  std::optional<std::int64_t> memory_peak_bytes;
  std::vector<std::string> kernel_lines;  ///< that name this pid, and GPU Xid lines of the attempt
  std::vector<std::string> last_lines;    ///< of the worker's output, at most 20
  std::string core_file;                  ///< where the kernel put it; or the handler it went to; empty: none
  std::vector<std::string> native_backtrace;
  std::vector<std::string> python_stack;  ///< of a crash (crash_lines); empty: it left none
  std::string traceback;                  ///< Python's, from the error file or from the output
  std::string ended_for;                  ///< why we ended it, for it hung; empty: we did not
  std::string last_words;                 ///< what it said of its end (cause_words.hpp)
  std::vector<std::string> findings;      ///< what was found of that: `/dev/shm: 64 MiB, none free`
};

/// What a death was about: by its last words, or by its signal.
[[nodiscard]] CauseKind kind_of_death(int exit_code, const DeathEvidence& evidence);

/// The state of a worker that had ended before, without a fault.
inline constexpr std::string_view ended_well = "ended with 0";

/// What a worker was doing when another died.
struct BystanderState {
  Rank rank{0};
  LocalRank local_rank{0};
  std::int64_t pid = 0;
  std::string state;           ///< `running`, `sleeping in futex_wait`, `stopped`, `ended with 0`, …
  std::int64_t silent_ms = 0;  ///< since its last output
  std::string progress = {};   ///< "step 120 ended 31.2 s ago"; empty: it reports no steps
};

/// One fault and everything about it, root cause first.
struct Incident {
  std::string run_id;
  std::string host;
  std::string attempt;                    ///< attempt_name
  std::vector<WorkerFailure> failures;    ///< in the order they were noticed
  DeathEvidence evidence;                 ///< of the root cause
  std::optional<std::int64_t> last_step;  ///< that the root cause reported
  std::string progress;                   ///< of it: "step 120 ended 0.1 s ago"; empty: it reports no steps
  std::string stdout_log;                 ///< of the root cause
  std::string stderr_log;
  std::vector<BystanderState> others;
  std::vector<AttemptRecord> history;  ///< this attempt last
  std::string consequence;             ///< `restarting, 2 left` or `giving up`
};

/// Version of the JSON below; grows when a field changes its meaning or goes.
inline constexpr int incident_schema = 1;
/// More kernel lines stand in the JSON only.
inline constexpr std::size_t kernel_lines_shown_max = 5;

/// One line: `rank 1 (local rank 1, pid 7) on node1: killed by SIGKILL: the out-of-memory killer, memory limit …`.
[[nodiscard]] std::string incident_summary(const Incident& incident);

/// What this exit code means, in words: `exit code 7`, `killed by SIGSEGV (invalid memory access)`,
/// `killed by SIGKILL: the out-of-memory killer …` when the evidence says so, `exit code 137: 128 + SIGKILL, …`.
[[nodiscard]] std::string explain_exit(int exit_code, const DeathEvidence& evidence);

/// One screen of text.
[[nodiscard]] std::string incident_text(const Incident& incident, const LocalTime& local_time);

/// Of its last lines the event has so many bytes, as JSON has them: with all else it is to fit into what an agent may
/// tell the coordinator at a time (node_event_bytes_max).
inline constexpr std::size_t event_lines_bytes_max = 8'192;
/// What is recorded of it: of its last lines the last ones, and where there is no room for one of them, its end.
[[nodiscard]] event::IncidentRecorded incident_event(const Incident& incident, std::string path, bool restarted);

/// The record as JSON, with `schema`; same content.
[[nodiscard]] std::string incident_json(const Incident& incident);

/// Python's last traceback in lines of output; empty when there is none that tells of the end (`last_traceback`).
[[nodiscard]] std::string find_traceback(const std::vector<std::string>& lines);

/// Fills in both backtraces and the last words: from the error file when the failure has one (its text is the failure's
/// message), else from the worker's output.
void add_backtraces(DeathEvidence& evidence, const WorkerFailure& failure, const std::vector<std::string>& lines);

/// Lines of a native backtrace: `#0 0x… in …` (sanitizers, debuggers, our runtime), `frame #0: …` (LibTorch) or
/// Python's fault handler; empty when there is none.
[[nodiscard]] std::vector<std::string> find_native_backtrace(const std::vector<std::string>& lines);

}  // namespace torchup
