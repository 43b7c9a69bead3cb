#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/core/launch_config.hpp"
#include "rendezvous/core/messages.hpp"

/// The agent of one node: when its workers start, stop and start again, and with which verdict it ends.
///
/// Pure: the runner (launcher/os/agent_runner) hands it one event and one time, and performs the actions in order.
namespace torchup {

/// A worker's exit code that says: state saved, start the job again later (README, "Exit codes"). Not a failure.
inline constexpr int requeue_code = 75;

// Events.

struct Begin {};  ///< the link to the coordinator is there; once, first
struct FromCoordinator {
  CoordinatorMessage message;
};
struct CoordinatorLost {
  int exit_code = 0;  ///< README, "Exit codes": 66, 67 or 68
  std::string reason;
};
struct StoreOpened {
  Round round{0};
  Port port{0};
};
struct StoreFailed {
  Round round{0};
  std::string reason;
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
  int exit_code = 0;         ///< the worker's own, or the negative signal number
  std::int64_t time_us = 0;  ///< UTC; the error file's time when it has one
  std::string message;       ///< what is known of the cause
  std::string error_file;    ///< empty when it left none
};
/// The job cannot go on here, and another attempt cannot do better.
struct GiveUp {
  std::string reason;
};
/// Answer to SweepDescendants: nothing that our workers left behind lives.
struct DescendantsGone {};
struct SignalArrived {
  int number = 0;
};
struct Wake {};  ///< nothing happened but time
using AgentEvent =
    std::variant<Begin, FromCoordinator, CoordinatorLost, StoreOpened, StoreFailed, WorkerStarted, SpawnFailed,
                 WorkerNotStarted, WorkerEnded, GiveUp, DescendantsGone, SignalArrived, Wake>;

// Actions.

struct Send {
  AgentMessage message;
  friend bool operator==(const Send&, const Send&) = default;
};
/// Open a fresh worker store and answer with StoreOpened or StoreFailed. The store of an earlier round may go.
struct OpenStore {
  Round round{0};
  friend bool operator==(const OpenStore&, const OpenStore&) = default;
};
/// Start all local workers, in local rank order; one WorkerStarted, SpawnFailed or WorkerNotStarted for each.
struct StartWorkers {
  Placement placement;
  std::string
      attempt;  ///< name of the attempt's log folder: attempt_<n>, after a membership change attempt_<n>.r<round>
  friend bool operator==(const StartWorkers&, const StartWorkers&) = default;
};
/// Send `number` to the process group of every living worker. One that `ends` them also goes to those that are being
/// started, and SIGCONT follows it, for a stopped process acts on none.
struct SignalWorkers {
  int number = 0;
  bool ends = true;
  std::string reason;
  friend bool operator==(const SignalWorkers&, const SignalWorkers&) = default;
};
/// Ask the workers, over the page that each shares with us, to save and stop together.
struct DrainWorkers {
  friend bool operator==(const DrainWorkers&, const DrainWorkers&) = default;
};
struct KillWorkers {
  std::string reason;
  friend bool operator==(const KillWorkers&, const KillWorkers&) = default;
};
/// End what the workers left behind, whatever its session: TERM, SIGKILL after `grace`. Answer: DescendantsGone.
struct SweepDescendants {
  Duration grace{0};
  friend bool operator==(const SweepDescendants&, const SweepDescendants&) = default;
};
/// One line for people.
struct Say {
  enum class Level { info, warning, error };
  Level level = Level::info;
  std::string text;
  friend bool operator==(const Say&, const Say&) = default;
};
/// The job is over on this node: report and exit. Always the last action.
struct Finish {
  Verdict verdict;
  std::vector<WorkerFailure> local_failures;  ///< of the last attempt on this node, in the order they were noticed
  friend bool operator==(const Finish&, const Finish&) = default;
};
using AgentAction = std::variant<Send, OpenStore, StartWorkers, SignalWorkers, DrainWorkers, KillWorkers,
                                 SweepDescendants, Say, Finish>;

/// Who this agent is.
struct AgentIdentity {
  NodeId node{""};
  std::string host;                    ///< for people and reports
  std::vector<std::string> addresses;  ///< where other nodes may reach this one, best first
  std::vector<Fact> facts;             ///< what should be the same on all nodes
};

class Agent {
 public:
  Agent(const LaunchConfig& config, AgentIdentity identity);

  /// Applies `event`, then everything that is due at `now`. `now` never goes backwards.
  std::vector<AgentAction> step(const AgentEvent& event, TimePoint now);
  /// When to send the next Wake if nothing else happens; empty while only an event can change anything.
  [[nodiscard]] std::optional<TimePoint> deadline() const;
  /// Of the current or last attempt on this node, in the order they were noticed; those that our stop caused included.
  [[nodiscard]] const std::vector<WorkerFailure>& failures() const { return failures_; }

 private:
  enum class Phase {
    joining,   ///< Join is sent; no worker lives
    running,   ///< workers are started
    stopping,  ///< they were told to stop
    sweeping,  ///< they have ended; what they left behind is being ended
    idle,      ///< nothing of ours lives; the coordinator's word is awaited
    pausing,   ///< before a restart, see RestartBackoff
    finished
  };
  enum class WorkerState { absent, starting, running, succeeded, failed, abandoned };
  struct Worker {
    WorkerState state = WorkerState::absent;
    std::int64_t pid = 0;
  };

  void on(const Begin&);
  void on(const FromCoordinator& event);
  void on(const CoordinatorLost& event);
  void on(const StoreOpened& event);
  void on(const StoreFailed& event);
  void on(const WorkerStarted& event);
  void on(const SpawnFailed& event);
  void on(const WorkerNotStarted& event);
  void on(const WorkerEnded& event);
  void on(const GiveUp& event);
  void on(const DescendantsGone&);
  void on(const SignalArrived& event);
  void on(const Wake&) {}

  void obey(const HostStore& message);
  void obey(const Placed& message);
  void obey(const StopWorkers& message);
  void obey(const End& message);
  void obey(const Waiting& message);

  void due();
  void abandon();
  void join();
  void stop(int signal_number, std::string reason);
  void kill(std::string reason);
  void leave(Leave word);
  void end_job(int exit_code, std::string reason);
  void requeue(LocalRank local_rank);
  void wait_for_own_end(std::string reason);
  void note_failure(const WorkerEnded& how, bool may_restart);
  void after_worker_ended();
  void sweep();
  void order_failures();
  void settle();
  void say(Say::Level level, std::string text);
  void act(AgentAction action) { actions_.push_back(std::move(action)); }
  [[nodiscard]] bool any_alive() const;

  const LaunchConfig config_;
  const AgentIdentity identity_;
  Phase phase_ = Phase::joining;
  TimePoint now_{};
  std::vector<AgentAction> actions_;
  std::vector<Worker> workers_;
  std::optional<Placement> placement_;
  std::vector<WorkerFailure> failures_;  ///< of this attempt, own and collateral
  bool failure_reported_ = false;        ///< WorkersFailed is sent for this round
  bool rejoin_wanted_ = false;
  std::optional<Verdict> verdict_;
  std::optional<Leave> leaving_;
  std::optional<TimePoint> deadline_;  ///< of the phase
  std::optional<TimePoint> job_end_;   ///< --timeout
  bool killed_ = false;
  std::vector<int> drained_by_;  ///< drain signals that have come
  int changes_since_restart_ = 0;
  int stop_signal_ = 0;  ///< the first one that this attempt's workers got to end them
  TimePoint attempt_begin_{};
  Duration next_pause_{0};
  std::string last_roster_;
};

}  // namespace torchup
