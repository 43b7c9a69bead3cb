#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/messages.hpp"

/// Everything that happens to a job on this node, as one stream of values. Report, result file, incident record and the
/// torchrun-shaped events are made from it (run_record.hpp) and have no second source.
namespace torchup {

/// When and where an event was seen.
struct EventStamp {
  std::int64_t utc_us = 0;        ///< microseconds since 1970, by this node's clock
  std::int64_t monotonic_us = 0;  ///< microseconds of this node's monotonic clock: for differences
  friend bool operator==(const EventStamp&, const EventStamp&) = default;
};

/// Who a worker event is about.
struct WorkerId {
  Rank rank{0};
  LocalRank local_rank{0};
  std::int64_t pid = 0;
  friend bool operator==(const WorkerId&, const WorkerId&) = default;
};

/// Why a worker's process is gone.
enum class WorkerEnd {
  succeeded,   ///< exit code 0
  failed,      ///< by itself, or killed by somebody else
  terminated,  ///< after we stopped it
};
[[nodiscard]] std::string_view worker_end_text(WorkerEnd end);

namespace event {

struct JobStarted {
  std::string run_id;
  std::string version;               ///< of torchup
  std::vector<std::string> command;  ///< of the workers
  std::string name;                  ///< of the program, as the report shows it
  std::string role;
  int min_nodes = 1;
  int max_nodes = 1;
  int local_world_size = 1;
  int max_restarts = 0;
  std::int64_t pid = 0;  ///< the launcher's, as users see it
  friend bool operator==(const JobStarted&, const JobStarted&) = default;
};
/// What the job waits for, once per change.
struct Waiting {
  std::string roster;
  friend bool operator==(const Waiting&, const Waiting&) = default;
};
struct RoundCompleted {
  Placement placement;
  friend bool operator==(const RoundCompleted&, const RoundCompleted&) = default;
};
struct AttemptStarted {
  std::string name;       ///< attempt_name
  std::string directory;  ///< of its logs; empty when there are none
  int restart_count = 0;
  friend bool operator==(const AttemptStarted&, const AttemptStarted&) = default;
};
struct WorkerStarted {
  WorkerId worker;
  std::string stdout_log;  ///< empty when the stream has no file
  std::string stderr_log;
  friend bool operator==(const WorkerStarted&, const WorkerStarted&) = default;
};
struct WorkerExited {
  WorkerId worker;
  int exit_code = 0;  ///< the worker's own, or the negative signal number
  WorkerEnd end = WorkerEnd::succeeded;
  std::string message;                         ///< of a failure: as in WorkerFailure
  std::string error_file;                      ///< empty when it left none
  std::optional<std::int64_t> last_step = {};  ///< the last that it reported, by the page that it shares with us
  friend bool operator==(const WorkerExited&, const WorkerExited&) = default;
};
/// The workers of this attempt are being stopped.
struct Stopping {
  std::string reason;
  friend bool operator==(const Stopping&, const Stopping&) = default;
};
/// All processes of the attempt are gone.
struct AttemptEnded {
  std::string reason;
  friend bool operator==(const AttemptEnded&, const AttemptEnded&) = default;
};
struct SignalReceived {
  int signal = 0;
  std::string consequence;  ///< what the launcher does about it
  friend bool operator==(const SignalReceived&, const SignalReceived&) = default;
};
/// Failures of this attempt are about to be answered by a restart.
struct Restarting {
  int restarts_left = 0;
  std::string reason;
  friend bool operator==(const Restarting&, const Restarting&) = default;
};
struct IncidentRecorded {
  std::string path;     ///< of the JSON; empty when there are no files
  std::string summary;  ///< one line
  friend bool operator==(const IncidentRecorded&, const IncidentRecorded&) = default;
};
struct LogWriteFailed {
  std::string path;
  std::string reason;            ///< text of the system's error
  std::uint64_t bytes_lost = 0;  ///< so far, for this file
  friend bool operator==(const LogWriteFailed&, const LogWriteFailed&) = default;
};
struct ConsoleLost {
  std::string stream;  ///< `stdout` or `stderr`: ours
  std::string reason;
  std::uint64_t bytes_lost = 0;  ///< so far
  friend bool operator==(const ConsoleLost&, const ConsoleLost&) = default;
};
/// Anything else that a person should know.
struct Warning {
  std::string text;
  friend bool operator==(const Warning&, const Warning&) = default;
};
struct JobEnded {
  Verdict verdict;
  friend bool operator==(const JobEnded&, const JobEnded&) = default;
};

}  // namespace event

using EventBody =
    std::variant<event::JobStarted, event::Waiting, event::RoundCompleted, event::AttemptStarted, event::WorkerStarted,
                 event::WorkerExited, event::Stopping, event::AttemptEnded, event::SignalReceived, event::Restarting,
                 event::IncidentRecorded, event::LogWriteFailed, event::ConsoleLost, event::Warning, event::JobEnded>;

struct LaunchEvent {
  EventStamp at;
  EventBody body;
  friend bool operator==(const LaunchEvent&, const LaunchEvent&) = default;
};

/// Version of the JSON below; grows when a field changes its meaning or goes.
inline constexpr int event_schema = 1;

/// One line of JSON with its line end: `schema`, `time` (UTC, RFC 3339, microseconds), `monotonic_us`, `host`, `event`
/// (snake case name of the type), then the fields of the type under their names here. Bytes that are not UTF-8
/// become U+FFFD.
[[nodiscard]] std::string to_json_line(const LaunchEvent& event, const std::string& host);

}  // namespace torchup
