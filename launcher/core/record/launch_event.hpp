#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/core/record/operation_events.hpp"
#include "launcher/core/rehearsal/rehearsal.hpp"
#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/diagnosis/hang_verdict.hpp"
#include "rendezvous/core/diagnosis/straggler_watch.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/text/log_line.hpp"

/// Everything that happens to a job on this node, as one stream of values. Report, result file, incident record, the
/// torchrun-shaped events, the answer to probes and every line that people read about the job are made from it
/// (run_record.hpp, to_text) and have no second source.
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

/// A worker's exit code that says: state saved, start the job again later (README, "Exit codes"). Not a failure.
inline constexpr int requeue_code = exit_code::requeue;

/// Why a worker's process is gone. Decided by the agent machine (agent.hpp), and by nobody else.
enum class WorkerEnd {
  succeeded,   ///< exit code 0, or requeue_code
  failed,      ///< by itself, or killed by somebody else: it counts
  terminated,  ///< after we stopped it, or because others had ended
};
[[nodiscard]] std::string_view worker_end_text(WorkerEnd end);

/// What becomes of a signal that the launcher gets.
enum class SignalUse {
  ends,      ///< the job, or this node's part in it
  forces,    ///< the second one: no grace any more
  drains,    ///< the workers are asked to save and stop
  forwards,  ///< goes to the workers, and changes nothing else
  pauses,    ///< the workers are stopped with us
  resumes,
  ignored,
};
[[nodiscard]] std::string_view signal_use_text(SignalUse use);

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
  bool of_link = false;  ///< it is the way to the coordinator that is told of
  friend bool operator==(const Waiting&, const Waiting&) = default;
};
struct RoundCompleted {
  Placement placement;
  int kept = 0;  ///< of this node's processes, from the round before
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
  std::string message;                    ///< of a failure: as in WorkerFailure
  std::string error_file;                 ///< empty when it left none
  std::optional<WorkerSteps> steps = {};  ///< nothing: it has reported none
  std::string binary = {};                ///< of a failure: what was executed
  bool consequence = false;               ///< as in WorkerFailure
  std::string ended_for = {};             ///< why we ended it, where that is its failure: it hung; else empty
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
/// A signal has come, and this is what we do about it.
struct SignalReceived {
  int signal = 0;
  SignalUse use = SignalUse::ignored;
  std::string consequence;  ///< what the launcher does about it, in words
  friend bool operator==(const SignalReceived&, const SignalReceived&) = default;
};
/// The time of the job is about to end: its workers are asked to save and stop.
struct TimeEnds {
  double left_s = 0;  ///< until then
  friend bool operator==(const TimeEnds&, const TimeEnds&) = default;
};
/// A worker is told to end.
struct ClosingSignalSent {
  WorkerId worker;
  int signal = 0;
  friend bool operator==(const ClosingSignalSent&, const ClosingSignalSent&) = default;
};
/// A worker gets SIGKILL.
struct WorkerKilled {
  WorkerId worker;
  int after_signal = 0;  ///< that it was told to end by before; 0: by none
  std::string reason;
  friend bool operator==(const WorkerKilled&, const WorkerKilled&) = default;
};
/// Not even SIGKILL has ended this worker; the job goes on without it. Pid 0: its start has not come back.
struct WorkerAbandoned {
  WorkerId worker;
  friend bool operator==(const WorkerAbandoned&, const WorkerAbandoned&) = default;
};
/// A worker could not be started.
struct SpawnFailed {
  WorkerId worker;
  std::string reason;
  friend bool operator==(const SpawnFailed&, const SpawnFailed&) = default;
};
/// No rank of the job has made progress for too long, and this is what a look at all of them has shown.
struct HangFound {
  std::uint64_t number = 0;  ///< of what is told, in this job
  HangKind kind = HangKind::busy;
  std::string summary;  ///< one line
  std::vector<Rank> culprits;
  double silent_s = 0;
  std::optional<AwaitedCollective> collective = {};  ///< in which the others wait
  HangAction action = HangAction::none;
  std::vector<std::string> page = {};  ///< for people: what follows the summary
  friend bool operator==(const HangFound&, const HangFound&) = default;
};
/// They get on again.
struct HangOver {
  std::uint64_t number = 0;  ///< as in HangFound
  double after_s = 0;        ///< how long they made none
  friend bool operator==(const HangOver&, const HangOver&) = default;
};
/// This worker keeps the others from getting on.
struct WorkerHung {
  WorkerId worker;
  std::string reason;
  std::string said = {};  ///< behind it, and the program's, as a warning's
  friend bool operator==(const WorkerHung&, const WorkerHung&) = default;
};
/// Somebody wanted to see what all ranks do, by SIGQUIT.
struct RanksShown {
  std::uint64_t number = 0;  ///< as in HangFound
  std::string summary;
  std::vector<std::string> page = {};
  friend bool operator==(const RanksShown&, const RanksShown&) = default;
};
/// The others wait for a rank, or for a node, at collectives, window after window.
struct StragglerFound {
  torchup::StragglerFound found;
  bool told_here = false;  ///< for people: it is of this node, or this is group rank 0's
  friend bool operator==(const StragglerFound&, const StragglerFound&) = default;
};
struct StragglerOver {
  torchup::StragglerOver over;
  bool told_here = false;
  friend bool operator==(const StragglerOver&, const StragglerOver&) = default;
};
/// Somebody else has stopped a worker (SIGSTOP).
struct WorkerStopped {
  WorkerId worker;
  friend bool operator==(const WorkerStopped&, const WorkerStopped&) = default;
};
/// A worker sleeps where nothing can wake it.
struct WorkerUninterruptible {
  WorkerId worker;
  std::string role;
  double lasted_s = 0;
  double limit_s = 0;  ///< a sleep this long ends the job
  bool stuck = false;  ///< it has lasted that long
  friend bool operator==(const WorkerUninterruptible&, const WorkerUninterruptible&) = default;
};
/// Where a worker is, for who asked by SIGQUIT.
struct WorkerSeen {
  WorkerId worker;
  std::string state;                 ///< as the kernel shows it
  std::optional<std::int64_t> step;  ///< that it reported last
  bool on_page = false;              ///< people have read it: RanksShown
  friend bool operator==(const WorkerSeen&, const WorkerSeen&) = default;
};
/// A process has not come out of a scope of the file-timer watchdog in time and got `signal`.
struct TimerExpired {
  WorkerId worker;       ///< that it is, or that has started it
  std::int64_t pid = 0;  ///< of the process
  std::string scope;
  int signal = 0;
  friend bool operator==(const TimerExpired&, const TimerExpired&) = default;
};
/// A worker has saved its state and asks for the job to be started again (exit code 75).
struct StateSaved {
  WorkerId worker;
  friend bool operator==(const StateSaved&, const StateSaved&) = default;
};
/// A worker's error file cannot be used.
struct ErrorFileRefused {
  std::string path;
  std::string reason;
  friend bool operator==(const ErrorFileRefused&, const ErrorFileRefused&) = default;
};
/// A worker's process lives on from the attempt before, and has its place in this one. Instead of WorkerStarted.
struct WorkerKept {
  WorkerId worker;
  std::string stdout_log;  ///< as in WorkerStarted
  std::string stderr_log;
  friend bool operator==(const WorkerKept&, const WorkerKept&) = default;
};
/// Failures of this attempt are about to be answered by a restart.
struct Restarting {
  int restarts_left = 0;
  std::string reason;
  int restart = 0;  ///< its number
  int kept = 0;     ///< of this node's processes
  int workers = 0;  ///< of this node
  friend bool operator==(const Restarting&, const Restarting&) = default;
};
/// The process that workers are forked from (--preload) has imported its modules, or come to its worker_main.
struct TemplateReady {
  std::int64_t pid = 0;
  std::vector<std::string> modules;  ///< or `program`
  double took_s = 0;
  friend bool operator==(const TemplateReady&, const TemplateReady&) = default;
};
/// It has ended. Nothing else has; another one is started before the next attempt's workers.
struct TemplateLost {
  std::int64_t pid = 0;
  std::string reason;
  friend bool operator==(const TemplateLost&, const TemplateLost&) = default;
};
/// From now on workers are started without --preload.
struct PreloadGivenUp {
  std::string reason;
  std::string said = {};  ///< by the process itself: people read it instead; as a warning's
  friend bool operator==(const PreloadGivenUp&, const PreloadGivenUp&) = default;
};
/// Something of this node was found that is not as it should be (core/diagnosis/preflight), in its words.
struct Preflight {
  std::string check;
  std::string level;
  std::string text;
  bool in_table = false;  ///< people read it there (--preflight-only); not recorded
  friend bool operator==(const Preflight&, const Preflight&) = default;
};
/// This node is no candidate for a place in the job from here on, until it is fit again.
struct NodeUnfit {
  std::string host;
  std::string reason;
  friend bool operator==(const NodeUnfit&, const NodeUnfit&) = default;
};
/// A fault of a rehearsal was brought about, or has no target.
struct FaultInjected {
  std::string text;
  friend bool operator==(const FaultInjected&, const FaultInjected&) = default;
};
/// How a rehearsal came out.
struct RehearsalEnded {
  RehearsalResult result;
  friend bool operator==(const RehearsalEnded&, const RehearsalEnded&) = default;
};
struct IncidentRecorded {
  std::string path;                          ///< of the JSON; empty when there are no files
  std::string summary;                       ///< one line
  bool restarted = false;                    ///< the job goes on
  std::vector<std::string> last_lines = {};  ///< of the root cause's output, as many as there is room for
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
/// The workers' store has closed somebody who is neither of this machine nor of a member of the job, and whom --allow
/// does not name.
struct StoreRefused {
  std::string address;
  friend bool operator==(const StoreRefused&, const StoreRefused&) = default;
};
/// This node's process has taken the job's coordinator over from another (net/coordinator/seat_candidate).
struct TakenOver {
  std::int64_t term = 0;  ///< of its seat
  std::string from;       ///< "host (10.0.0.5:4711)"; empty: nobody had the seat
  bool proved = false;    ///< the other's end was
  double seconds = 0;     ///< since that was known, or the seat seen vacant
  friend bool operator==(const TakenOver&, const TakenOver&) = default;
};
/// Anything else that a person should know.
struct Warning {
  std::string text;
  std::string said = {};  ///< behind it, and a worker's: only those see it who may control
  friend bool operator==(const Warning&, const Warning&) = default;
};
/// Something of ours went wrong; the job goes on.
struct Fault {
  std::string text;
  friend bool operator==(const Fault&, const Fault&) = default;
};
/// What happens on the way, for those who watch: at the coordinator too where we host it (who came, who was refused).
struct Notice {
  std::string text;
  LogLevel level = LogLevel::info;
  std::string said = {};  ///< as a warning's
  friend bool operator==(const Notice&, const Notice&) = default;
};
struct JobEnded {
  Verdict verdict;
  std::optional<int> launcher_exit_code = {};  ///< this node's own: it may be a worker's (--propagate-exit-code)
  friend bool operator==(const JobEnded&, const JobEnded&) = default;
};

}  // namespace event

using EventBody =
    std::variant<event::JobStarted, event::Waiting, event::RoundCompleted, event::AttemptStarted, event::WorkerStarted,
                 event::WorkerKept, event::WorkerExited, event::Stopping, event::AttemptEnded, event::SignalReceived,
                 event::TimeEnds, event::ClosingSignalSent, event::WorkerKilled, event::WorkerAbandoned,
                 event::SpawnFailed, event::MembershipChanged, event::Progress, event::OrderReceived, event::HookFailed,
                 event::HangFound, event::HangOver, event::WorkerHung, event::RanksShown, event::StragglerFound,
                 event::StragglerOver, event::WorkerStopped, event::WorkerUninterruptible, event::WorkerSeen,
                 event::TimerExpired, event::StateSaved, event::ErrorFileRefused, event::Restarting,
                 event::TemplateReady, event::TemplateLost, event::PreloadGivenUp, event::Preflight, event::NodeUnfit,
                 event::FaultInjected, event::RehearsalEnded, event::IncidentRecorded, event::LogWriteFailed,
                 event::ConsoleLost, event::StoreRefused, event::TakenOver, event::Warning, event::Fault, event::Notice, event::JobEnded>;

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
/// As in that line: one of event_names().
[[nodiscard]] std::string event_name(const EventBody& event);

/// One line for people, without line end.
struct EventText {
  LogLevel level = LogLevel::info;
  std::string text;
  friend bool operator==(const EventText&, const EventText&) = default;
};

/// What people read of an event while the job runs; nothing for most. The last words about a job are the failure report
/// (exit_report.hpp).
[[nodiscard]] std::optional<EventText> to_text(const EventBody& event);
/// Whether all nodes of the job hear the same.
[[nodiscard]] bool is_of_whole_job(const EventBody& event);
/// The lines that follow that one, without a name in front, printable; none for most.
[[nodiscard]] std::vector<std::string> page_of(const EventBody& event);

}  // namespace torchup
