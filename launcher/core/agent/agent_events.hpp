#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/core/agent/save_watch.hpp"
#include "launcher/core/agent/state_watch.hpp"
#include "launcher/core/diagnosis/hang_files.hpp"
#include "launcher/core/diagnosis/preflight.hpp"
#include "launcher/core/options/launch_config.hpp"
#include "launcher/core/record/launch_event.hpp"
#include "launcher/core/rehearsal/rehearsal_report.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/base/worker_channel.hpp"
#include "rendezvous/core/diagnosis/lateness_nodes.hpp"
#include "rendezvous/core/link/messages.hpp"

/// What reaches the agent of a node (launcher/core/agent/agent.hpp), and what it answers.
namespace torchup {

// Events.

struct Begin {};  ///< the link to the coordinator is there; once, first
struct FromCoordinator {
  CoordinatorMessage message;
  bool foreign = false;  ///< it is no coordinator of ours, but torchrun's agents, who end all workers before each round
};
struct CoordinatorLost {
  int exit_code = 0;  ///< README, "Exit codes": 66, 67 or 68
  std::string reason;
};
struct StoreOpened {
  Round round{0};
  Port port{0};
  StoreKey key{};  ///< as in StoreReady
};
struct StoreFailed {
  Round round{0};
  Error error;
};
struct WorkerStarted {
  LocalRank local_rank{0};
  std::int64_t pid = 0;
};
/// The worker could not be started at all.
struct SpawnFailed {
  LocalRank local_rank{0};
  std::string reason;      ///< names the path and what the system said
  bool permanent = false;  ///< another try cannot help: the program is missing or is none
  std::int64_t time_us = 0;
};
/// The stop came first.
struct WorkerNotStarted {
  LocalRank local_rank{0};
};
struct WorkerEnded {
  LocalRank local_rank{0};
  int exit_code = 0;                            ///< the worker's own, or the negative signal number
  std::int64_t time_us = 0;                     ///< UTC; the error file's time when it has one
  std::string message;                          ///< what is known of the cause
  std::string error_file;                       ///< empty when it left none
  std::optional<WorkerProgress> progress = {};  ///< as its page says
  std::vector<std::string> lines = {};          ///< what it said last: in its error file, else in its output
  std::int64_t raised_at_ns = 0;                ///< as in WorkerFailure
};
/// An exception has left the program of a worker that still lives: its page and its error file say so.
struct ExceptionSeen {
  LocalRank local_rank{0};
  std::int64_t raised_at_ns = 0;  ///< as in WorkerFailure
  std::int64_t time_us = 0;       ///< the error file's, UTC
  std::string message = {};
  std::string error_file = {};
  std::vector<std::string> lines = {};
};
/// A worker has said something over its channel, or can say nothing any more, which is as if it left.
struct WorkerSaid {
  LocalRank local_rank{0};
  WorkerWord word;
  std::uint64_t beats = 0;  ///< of its page, by now
  bool deaf = false;        ///< it can say nothing any more, and has not read all that was said to it
};
/// What the pages of all living workers say.
struct StepsSeen {
  std::vector<StepSample> samples;
};
/// The kernel's view of all living workers.
struct StatesSeen {
  std::vector<StateSample> samples;
};
/// Answer to TakeLooks: what was seen of the workers, as far as anything was.
struct LooksTaken {
  std::uint64_t number = 0;
  std::vector<RankLook> looks;
  std::vector<RankStacks> stacks;  ///< whole, for this node's file
};
/// Answer to TakeLooks that asks for arrivals alone.
struct ArrivalsSeen {
  std::uint64_t number = 0;
  std::vector<RankArrivals> ranks;
  std::vector<std::string> shared_groups;      ///< that have members on other nodes, in order
  std::optional<ClockOffset::Estimate> clock;  ///< nothing: nobody can compare these times with other nodes'
};
/// The file-timer watchdog has signalled a process: this worker, or one that it has started.
struct TimerExpired {
  LocalRank local_rank{0};
  std::int64_t pid = 0;
  std::string scope;
  int signal = 0;
};
/// Answer to SweepDescendants: nothing that our workers left behind lives.
struct DescendantsGone {};
/// Answer to RunChecks.
struct ChecksDone {
  std::uint64_t number = 0;
  std::vector<Finding> findings;
};
/// Answer to CompareNodes.
struct NodesCompared {
  int exit_code = 0;              ///< with --preflight-only: of the job, by what was found on all nodes
  std::string reason = {};        ///< of it
  std::vector<Finding> own = {};  ///< what the ways between the nodes, and their clocks, say of this one
  bool others_unfit = false;      ///< they condemn another node
  std::string problem = {};       ///< why the ways were not tried; empty: they were
};
/// Answer to InjectFault.
struct FaultAnswered {
  std::size_t fault = 0;  ///< as in rehearsal::Inject
  std::string why = {};   ///< it could not be performed; empty: it was
};
struct SignalArrived {
  int number = 0;
  bool passed_on = true;  ///< by the outer process; else it was sent to the inner one itself
};
/// When the time of the job ends, by what is known now; nothing: never.
struct EndOfTime {
  std::optional<TimePoint> end;
};
struct Wake {};  ///< nothing happened but time
using AgentEvent = std::variant<Begin, FromCoordinator, CoordinatorLost, StoreOpened, StoreFailed, WorkerStarted,
                                SpawnFailed, WorkerNotStarted, WorkerEnded, ExceptionSeen, WorkerSaid, StepsSeen,
                                StatesSeen, LooksTaken, ArrivalsSeen, TimerExpired, DescendantsGone, ChecksDone,
                                NodesCompared, FaultAnswered, SignalArrived, EndOfTime, Wake>;

/// Whether the round or the job ends by plan, with time for workers to save. Those are asked that have ended a step
/// until now: their pages are to be looked at (StepsSeen) right before the machine hears of it.
[[nodiscard]] bool is_planned_stop(const CoordinatorMessage& message);

// Actions.

struct Send {
  AgentMessage message;
  friend bool operator==(const Send&, const Send&) = default;
};
/// Open a fresh worker store and answer with StoreOpened or StoreFailed. The store of an earlier round may go.
struct OpenStore {
  Round round{0};
  std::vector<std::string> sources = {};  ///< as in HostStore
  friend bool operator==(const OpenStore&, const OpenStore&) = default;
};
/// Start all local workers, in local rank order; one WorkerStarted, SpawnFailed or WorkerNotStarted for each. Those
/// that are `kept` wait for their place; they are told it (WorkerStarted), or not (WorkerNotStarted), instead.
struct StartWorkers {
  Placement placement;
  std::string
      attempt;  ///< name of the attempt's log folder: attempt_<n>, after a membership change attempt_<n>.r<round>
  std::vector<LocalRank> kept = {};
  friend bool operator==(const StartWorkers&, const StartWorkers&) = default;
};
/// Whoever is not being started yet is not started any more: WorkerNotStarted for each. Where the others are `killed`,
/// who is being started gets SIGKILL, too: its exec may stand still on a stalled file system.
struct CancelStarts {
  bool killed = false;
  friend bool operator==(const CancelStarts&, const CancelStarts&) = default;
};
/// Send `number` to the process groups of these living workers. One that `ends` them is followed by SIGCONT, for a
/// stopped process acts on none.
struct SignalWorkers {
  int number = 0;
  bool ends = true;
  std::vector<LocalRank> workers;
  friend bool operator==(const SignalWorkers&, const SignalWorkers&) = default;
};
/// Ask the workers, over the page that each shares with us, to save and stop together. Those that have not opened
/// theirs get `number`, if it is not 0 and they have a handler for it, and if they must hear (`insist`) without one
/// too.
struct DrainWorkers {
  int number = 0;
  bool insist = false;
  friend bool operator==(const DrainWorkers&, const DrainWorkers&) = default;
};
/// Tell these workers, over their channels, that the round is over: they are to park.
struct EndRound {
  std::vector<LocalRank> workers;
  std::string reason;
  friend bool operator==(const EndRound&, const EndRound&) = default;
};
/// Tell this worker, over its channel, that nobody else is to blame for what it raised.
struct BlameWorker {
  LocalRank local_rank{0};
  friend bool operator==(const BlameWorker&, const BlameWorker&) = default;
};
/// SIGABRT to these workers alone, not to their groups: a handler of theirs tells where they hang. Then SIGCONT, for a
/// stopped process acts on none.
struct AbortWorkers {
  std::vector<LocalRank> workers;
  friend bool operator==(const AbortWorkers&, const AbortWorkers&) = default;
};
/// SIGKILL to the process groups of these workers; to all that the attempt has started where it is `everything`.
struct KillWorkers {
  std::vector<LocalRank> workers;
  bool everything = false;
  friend bool operator==(const KillWorkers&, const KillWorkers&) = default;
};
/// End what the workers left behind, whatever its session: first wait for `patience` as long as something is there,
/// then TERM, and SIGKILL after `grace`. Workers that are `kept` live on, and what they have started. Said again with
/// no time at all, it shortens what is under way. Answer: DescendantsGone, once.
struct SweepDescendants {
  Duration patience{0};
  Duration grace{0};
  std::vector<LocalRank> kept = {};
  friend bool operator==(const SweepDescendants&, const SweepDescendants&) = default;
};
/// Look at this node, and answer with ChecksDone. Until then nothing else of ours runs, but where only quick checks are
/// made: their answer may come beside everything else.
struct RunChecks {
  std::uint64_t number = 0;
  PreflightLevel level = PreflightLevel::quick;
  bool ask_gpus = false;     ///< the driver anew; else what it said for the plan counts
  bool health = false;       ///< --health-check too
  bool ways = false;         ///< those that condemned this node, once more
  std::string last_failure;  ///< for it: why the workers were restarted last; last_failure_bytes_max at most
  friend bool operator==(const RunChecks&, const RunChecks&) = default;
};
/// Nobody waits for the answer any more: what was started for it is to end.
struct CancelChecks {
  friend bool operator==(const CancelChecks&, const CancelChecks&) = default;
};
/// Exchange with the nodes of this round what was found on each, and try the ways between them; with --preflight-only
/// show the table. Answer: NodesCompared.
struct CompareNodes {
  Placement placement;
  std::vector<Finding> findings;  ///< of this node
  friend bool operator==(const CompareNodes&, const CompareNodes&) = default;
};
/// Tell of exceptions in workers that live (ExceptionSeen), for cause_patience: one of them may be the cause of
/// another's end.
struct SeekCause {
  friend bool operator==(const SeekCause&, const SeekCause&) = default;
};
/// Say of each of these workers where it is. `on_page`: people have read it already.
struct ShowWorkers {
  std::vector<LocalRank> workers;
  bool on_page = false;
  friend bool operator==(const ShowWorkers&, const ShowWorkers&) = default;
};
/// Look at these workers, twice, or once and as fast as can be where somebody has `asked`, and answer with LooksTaken;
/// where it is `arrivals_only` with ArrivalsSeen. Who cannot be seen is left out.
struct TakeLooks {
  std::uint64_t number = 0;
  std::vector<LocalRank> workers;
  bool asked = false;
  bool arrivals_only = false;
  friend bool operator==(const TakeLooks&, const TakeLooks&) = default;
};
/// Ask the scheduler anew when the job's time ends. Answer: EndOfTime, where it is known.
struct AskEndOfTime {
  friend bool operator==(const AskEndOfTime&, const AskEndOfTime&) = default;
};
/// Have the coordinator know how far the workers are: the newest report is what counts.
struct ReportProgress {
  ProgressReport report;
  friend bool operator==(const ReportProgress&, const ReportProgress&) = default;
};
/// Show this to people and record it (hang_event), and write the files of it beside the attempt's logs. `own`: the
/// ranks of which this node's page tells; nothing: of all.
struct TellHang {
  HangReport report;
  std::optional<RankSet> own = {};
  std::vector<RankStacks> stacks = {};
  friend bool operator==(const TellHang&, const TellHang&) = default;
};
/// Do this to a living worker, which runs as `pid`, to this node or to its link. Answer: FaultAnswered, but of a stop
/// or an end of this node only where it cannot be done. A leave does not come here.
struct InjectFault {
  rehearsal::Inject inject;
  std::int64_t pid = 0;
  friend bool operator==(const InjectFault&, const InjectFault&) = default;
};
/// No worker is stopped for a rehearsal any more; who is goes on.
struct ReleaseWorkers {
  friend bool operator==(const ReleaseWorkers&, const ReleaseWorkers&) = default;
};
/// Tell this who has started this node for a rehearsal.
struct TellStarter {
  RehearsalReport report;
  friend bool operator==(const TellStarter&, const TellStarter&) = default;
};
/// This has happened: for the record, and for people where it has a text.
struct Record {
  EventBody event;
  friend bool operator==(const Record&, const Record&) = default;
};
/// The job is over on this node: report and exit. Always the last action.
struct Finish {
  Verdict verdict;
  std::vector<WorkerFailure> local_failures;      ///< of the last attempt on this node, in the order they were noticed
  bool left = false;                              ///< this node has left a job that others may go on with
  std::optional<RehearsalResult> rehearsal = {};  ///< whose exit code is ours
  friend bool operator==(const Finish&, const Finish&) = default;
};
using AgentAction = std::variant<Send, OpenStore, StartWorkers, CancelStarts, SignalWorkers, DrainWorkers, EndRound,
                                 BlameWorker, AbortWorkers, KillWorkers, SweepDescendants, RunChecks, CancelChecks,
                                 CompareNodes, SeekCause, ShowWorkers, TakeLooks, AskEndOfTime, ReportProgress,
                                 TellHang, InjectFault, ReleaseWorkers, TellStarter, Record, Finish>;

}  // namespace torchup
