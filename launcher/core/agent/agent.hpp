#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/agent/agent_events.hpp"
#include "launcher/core/agent/save_watch.hpp"
#include "launcher/core/agent/state_watch.hpp"
#include "launcher/core/agent/step_tally.hpp"
#include "launcher/core/options/launch_config.hpp"
#include "launcher/core/record/launch_event.hpp"
#include "launcher/core/rehearsal/rehearsal.hpp"
#include "launcher/core/scheduler/stop_time.hpp"
#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/base/worker_channel.hpp"
#include "rendezvous/core/diagnosis/hang_watch.hpp"
#include "rendezvous/core/diagnosis/lateness.hpp"
#include "rendezvous/core/diagnosis/told_parts.hpp"
#include "rendezvous/core/link/messages.hpp"

/// The agent of one node: when its workers start, stop and start again, and with which verdict it ends.
///
/// Pure: the runner (launcher/os/agent_runner) hands it one event and one time, and performs the actions in order. The
/// rounds and the phases are in agent.cpp, what is looked at before a Join in agent_checks.cpp, what becomes of single
/// workers in agent_workers.cpp, which of their failures is the cause in agent_cause.cpp, what becomes of signals in
/// agent_signals.cpp, at the end of the job's time in agent_stop_time.cpp, how a round ends in agent_round_end.cpp,
/// what becomes of workers that outlive their round in agent_keep.cpp, what is done about workers that hang in
/// agent_hang.cpp, which faults a rehearsal brings about in agent_rehearsal.cpp.
namespace torchup {

/// The job's exit code when a worker, a node or the time limit fails it.
inline constexpr int failed_code = exit_code::failed;
/// What Python ends with after an exception.
inline constexpr int exception_code = 1;
/// What a shell says of a program that it cannot start.
inline constexpr int spawn_failed_code = 126;

/// Equal signals within this time are one: whoever signals every process of the job reaches both of the launcher's, and
/// the outer one passes its copy on.
inline constexpr Duration signal_copy_window = std::chrono::milliseconds{20};
/// One copy may come later where it took the other way (one from the outer process, one from outside): a machine that
/// has no time for the outer one passes on late, and nobody strikes a key in both processes.
inline constexpr Duration signal_other_way_window = std::chrono::seconds{1};
/// How long a worker may take to hear a request to drain in its own way before it gets the signal, whatever that does.
inline constexpr Duration drain_patience = std::chrono::seconds{1};
/// How long what workers that succeeded leave behind may take to end by itself. torch_shm_manager unlinks its segments
/// 2 s after the last process that used them.
inline constexpr Duration leftover_patience = std::chrono::seconds{3};
/// How long a failure that is a consequence waits for its cause: an exception on its way out passes handlers that close
/// connections, of which others die first.
inline constexpr Duration cause_patience = std::chrono::milliseconds{500};
/// How long a killed worker may take to go. Longer means that the kernel cannot end it.
inline constexpr Duration unkillable_after = std::chrono::seconds{10};
/// How long who asks by SIGQUIT waits for the page of all ranks: the coordinator's own limit, and the way there and
/// back.
inline constexpr Duration quit_patience = asked_look_wait_max + std::chrono::milliseconds{500};
/// How long whole stacks are kept for a verdict that may follow from them.
inline constexpr Duration stacks_kept = look_wait_max + std::chrono::seconds{5};
/// How long a hung worker may take after SIGABRT to tell where it hangs.
inline constexpr Duration abort_patience = std::chrono::seconds{10};
/// How long a worker that has raised something waits for another's fault to show, before it is called its own.
inline constexpr Duration blame_patience = std::chrono::milliseconds{250};
/// The same for one whose words say that it is another's fault: a busy machine may need long to show that one's end.
inline constexpr Duration blame_patience_for_others = std::chrono::seconds{2};
/// How long a node on which no worker can run waits for the others before it ends the job for all: who has come by then
/// hears of it.
inline constexpr Duration decline_patience = std::chrono::seconds{3};
/// A comparison of nodes that has not ended so long after its own limit never will.
inline constexpr Duration comparison_slack = std::chrono::seconds{5};
/// How long a node waits for another that the comparison condemns to say so itself, by which the round ends.
inline constexpr Duration condemned_patience = std::chrono::seconds{10};
/// A job that has waited so long in vain for its nodes to compare themselves does not wait again, however often its
/// members change.
inline constexpr Duration comparing_in_vain_max = std::chrono::seconds{30};
/// The longest that a node waits which its ways condemn again and again: each time that it is tried stops the others.
inline constexpr Duration ways_interval_max = std::chrono::hours{1};
/// So often in a row a worker is kept that has ended no step in between: what it keeps may be the fault.
inline constexpr int kept_in_a_row_max = 2;

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
  /// How long after StepsSeen the next one is due, and the same of StatesSeen. While workers are to run.
  [[nodiscard]] Duration step_interval() const;
  [[nodiscard]] Duration state_interval() const { return look_interval(config_.stuck_timeout); }

 private:
  enum class Phase {
    checking,   ///< this node is being looked at before its Join; no worker runs
    joining,    ///< Join is sent; no worker lives
    comparing,  ///< this node has met the others, and they look at each other
    running,    ///< workers are started
    stopping,   ///< they were told to stop
    sweeping,   ///< they have ended; what they left behind is being ended
    idle,       ///< nothing of ours lives; the coordinator's word is awaited
    pausing,    ///< before a restart, see RestartBackoff
    finished
  };
  enum class WorkerState { absent, starting, running, succeeded, failed, abandoned };
  /// How a worker that runs stands to the end of its round.
  enum class Stay {
    no,       ///< it ends with it, as any program
    yes,      ///< it can outlive it
    parking,  ///< it was told that the round is over
    parked,   ///< it has left the round, and waits for its place in the next
  };
  struct Worker {
    WorkerState state = WorkerState::absent;
    std::int64_t pid = 0;
    std::vector<int> pending = {};  ///< signals to pass on that came while it was being started
    std::string abort_reason = {};  ///< why it was aborted as hung; empty: it was not
    std::string expired = {};       ///< which watchdog timer of its ran out: it has failed, whatever its exit code
    Stay stay = Stay::no;
    bool awaits_place = false;                ///< parked, and StartWorkers names it
    std::optional<TimePoint> blame_due = {};  ///< it has raised something, and is told then that it is its own
    bool raised_others = false;               ///< its words say that another's fault is behind it
    std::optional<TimePoint> blamed_at = {};  ///< when it was told so
    int kept = 0;                             ///< so often in a row, without a step of its own in between
    std::uint64_t beats = 0;                  ///< of its page, when it parked last
    std::optional<ExceptionSeen> exception = {};
    bool failure_noted = false;  ///< by its exception, while it lived
  };
  static bool is_in(const std::vector<int>& list, int number);
  /// The last signal of its number that counted.
  struct Heard {
    int number = 0;
    bool passed_on = false;
    TimePoint at{};
    bool copied = false;  ///< its copy by the other way has come
  };

  /// One that is to be passed on, unless it shows that the workers have it already.
  struct Held {
    int number = 0;
    TimePoint until{};
  };

  /// What people were told of, and not yet that it is over.
  struct ToldHang {
    std::uint64_t number = 0;  ///< as told here; see hangs_told_
    Duration silence{0};       ///< until then
    TimePoint at{};
  };
  /// Of the running attempt, where nothing else is said.
  struct Diagnosis {
    std::optional<ProgressClock> progress = {};  ///< while its workers may make progress
    SaveWatch saves{Duration{0}};
    LatenessMeter lateness = {};
    std::optional<HangWatch> own_watch = {};   ///< where nobody watches over the whole job
    NewsReader news = {};                      ///< of the whole job
    std::vector<RankStacks> stacks = {};       ///< of the newest look
    std::optional<TimePoint> stacks_end = {};  ///< they are kept no longer
    HangAction action = HangAction::none;      ///< that is being done
    std::optional<ToldHang> hang = {};         ///< the newest
    std::optional<TimePoint> quit_ends = {};   ///< SIGQUIT has come, the page of all ranks has not yet
    bool shown = false;                        ///< that page
    bool any_step = false;                     ///< a worker has ended one
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
  void on(const ExceptionSeen& event);
  void on(const WorkerSaid& event);
  void on(const StepsSeen& event);
  void on(const StatesSeen& event);
  void on(const LooksTaken& event);
  void on(const ArrivalsSeen& event);
  void on(const TimerExpired& event);
  void on(const DescendantsGone&);
  void on(const ChecksDone& event);
  void on(const NodesCompared& event);
  void on(const FaultAnswered& event);
  void on(const SignalArrived& event);
  void on(const EndOfTime& event);
  void on(const Wake&) {}

  void obey(const HostStore& message);
  void obey(const Placed& message);
  void obey(const StopWorkers& message);
  void obey(const End& message);
  void obey(const Waiting& message);
  void obey(const Examine& message);
  void obey(const HangTold& message);
  void obey(const OfOperations auto&) {}  // answered by others

  [[nodiscard]] bool round_follows() const;
  void leaves(const WorkerSaid& event);
  void raises(LocalRank local_rank, const std::string& text);
  void parks(LocalRank local_rank, std::uint64_t beats);
  struct Blame {
    LocalRank local_rank{0};
    TimePoint at{};
  };
  [[nodiscard]] std::optional<Blame> next_blame() const;
  [[nodiscard]] std::vector<LocalRank> parked() const;
  std::vector<LocalRank> let_go();
  [[nodiscard]] bool waits_for_kept();
  void end_kept(std::vector<LocalRank> workers);
  void take_along(Worker& worker);
  void has_place(LocalRank local_rank);
  std::vector<LocalRank> tell_of_the_end();
  void blame();
  void due();
  void abandon();
  void prepare();
  void decline(const CoordinatorMessage& message);
  [[nodiscard]] bool is_to_compare(const Placement& placement) const;
  void compare(const Placed& message);
  void comparison_due();
  void tell_news(const std::vector<Finding>& findings);
  void join();
  void stop(int signal_number, std::string reason);
  void kill(const std::string& reason);
  void kill(KillWorkers action, int after_signal, const std::string& reason);
  void signal(std::vector<LocalRank> workers, int number, bool ends);
  void signal_to_end(int number);
  [[nodiscard]] int stop_number(int number) const;
  bool is_copy(const SignalArrived& event);
  void hold(const SignalArrived& event);
  void sent_to_all(int number);
  void forward_due();
  void pause(int number);
  void drain(int number);
  [[nodiscard]] bool awaits_saving() const;
  void forward(int number);
  void stop_time_due();
  void stop_in_time();
  void ask_to_save();
  void save_and_stop(std::string reason);
  [[nodiscard]] bool can_save_together() const;
  [[nodiscard]] TimePoint own_end_limit() const;
  [[nodiscard]] Duration stop_grace() const;
  void dismissed();
  void end_by_signal(int number);
  void end_at_once(int number);
  void received(int number, SignalUse use, std::string consequence);
  void leave(Leave word);
  void leave_node(std::string reason, bool ends_job);
  void end_job(int exit_code, std::string reason);
  void requeue(LocalRank local_rank);
  [[nodiscard]] WorkerEnd kind_of_end(const Worker& worker, int exit_code) const;
  [[nodiscard]] bool drained_to_death(int exit_code) const;
  void wait_for_own_end(std::string reason);
  void note_failure(const WorkerEnded& how, bool consequence);
  [[nodiscard]] bool is_consequence(const WorkerEnded& how, WorkerEnd end) const;
  [[nodiscard]] bool cause_may_come() const;
  void await_cause();
  bool note_exceptions(const WorkerEnded& how, bool consequence);
  [[nodiscard]] std::vector<WorkerFailure> told_failures() const;
  void tell_failures();
  void begin_diagnosis(bool watched);
  void forget_progress();
  void tell_progress(bool ends);
  [[nodiscard]] bool round_goes_on() const;
  void take_looks(std::uint64_t number, bool asked, bool arrivals_only);
  void take(const std::vector<hang::Action>& wanted);
  void take_wanted(const hang::Examine& examine);
  void take_wanted(const hang::Found& found);
  void take_wanted(const hang::Over& over);
  void take_wanted(const hang::Void& ended);
  void learn(const hang::Found& found);
  void learn(const hang::Over& over);
  void end_well();
  void learn(const StragglerFound& found);
  void learn(const StragglerOver& over);
  void end_hung(const hang::Found& found, const HangWords& words, const std::string& summary);
  [[nodiscard]] bool is_told_here(const std::optional<Rank>& rank, const std::string& host) const;
  [[nodiscard]] std::vector<LocalRank> own_of(const std::vector<Rank>& ranks) const;
  bool ask_look();
  void quit();
  [[nodiscard]] std::optional<TimePoint> diagnosis_deadline() const;
  void diagnosis_due();
  void rehearse_round();
  void rehearse_end_of_round(bool well);
  void rehearse_progress(const std::vector<StepSample>& samples);
  void rehearse(const rehearsal::Event& event);
  void tell_place(bool placed);
  void tell_of_fault(const rehearsal::Inject& wanted);
  void inject(const rehearsal::Inject& wanted);
  void inject_in_worker(const rehearsal::Inject& wanted);
  void leave_for_rehearsal(const rehearsal::Inject& wanted);
  void inject_awaited(LocalRank local_rank);
  [[nodiscard]] bool is_stopped_by_rehearsal(LocalRank local_rank) const;
  [[nodiscard]] bool any_stopped_by_rehearsal() const;
  [[nodiscard]] std::optional<RehearsalResult> end_of_rehearsal(const Verdict& verdict);
  void report_failures(bool may_restart, std::string reason);
  void after_worker_ended();
  void sweep();
  void order_failures();
  void settle();
  [[nodiscard]] Verdict own_verdict() const;
  void act(AgentAction action) { actions_.push_back(std::move(action)); }
  void record(EventBody event) { actions_.push_back(Record{std::move(event)}); }
  Worker& worker_at(LocalRank local_rank) { return workers_.at(static_cast<std::size_t>(local_rank.value())); }
  [[nodiscard]] const Worker& worker_at(LocalRank local_rank) const {
    return workers_.at(static_cast<std::size_t>(local_rank.value()));
  }
  [[nodiscard]] WorkerId id_of(LocalRank local_rank) const;
  [[nodiscard]] bool any_alive() const;
  [[nodiscard]] bool any_busy() const;
  [[nodiscard]] std::vector<LocalRank> in_state(WorkerState state) const;
  [[nodiscard]] std::vector<LocalRank> hung() const;
  [[nodiscard]] bool restart_under_way() const;

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
  bool another_round_ = false;           ///< follows this one, by all that is known here; see round_follows
  bool any_raised_ = false;              ///< in this attempt, of whom the cause is sought
  bool foreign_ = false;                 ///< torchrun's agents decide
  bool end_told_ = false;                ///< of this attempt: AttemptEnded is recorded
  std::optional<Placed> place_to_come_;  ///< taken when the last one of the round before is gone
  std::optional<Verdict> verdict_;
  std::optional<Leave> leaving_;
  std::optional<TimePoint> deadline_;       ///< of the phase; while joining, of who has left its parking place
  std::optional<TimePoint> look_again_at_;  ///< while joining: when this node, which is unfit, is looked at again
  std::optional<TimePoint> job_end_;        ///< --timeout
  std::optional<TimePoint> decline_at_;     ///< when this node, on which no worker can run, ends the job
  std::optional<TimePoint> drain_insists_;  ///< when workers that did not hear of it get the signal
  std::optional<TimePoint> cause_ends_;     ///< when failures are told of, though none of them is a cause
  std::optional<TimePoint> abort_ends_;     ///< when hung workers that SIGABRT did not end are killed
  std::optional<TimePoint> hung_ends_;      ///< when one that not even SIGKILL has ended ends the job
  bool killed_ = false;
  bool abandoned_ = false;       ///< a worker of this job could not be killed
  bool paused_ = false;          ///< SIGTSTP came, SIGCONT did not yet
  std::vector<int> drained_by_;  ///< drain signals that were obeyed, the first one in front
  std::vector<int> ended_by_;    ///< end signals that came from outside
  std::vector<Heard> heard_;     ///< one for each number
  std::vector<Held> held_;
  std::optional<StopTime> stop_time_;  ///< --stop-before
  StateWatch state_watch_;
  StepTally step_tally_;
  Diagnosis diagnosis_;
  std::uint64_t hangs_told_ = 0;  ///< the least number of what is told next
  std::optional<Rehearsal> rehearsal_;
  std::vector<rehearsal::Inject> awaiting_start_;  ///< faults of workers that are being started
  bool starter_knows_place_ = false;
  bool left_for_rehearsal_ = false;  ///< this node does not see the job's end
  std::string attempt_reason_;       ///< why this attempt's workers were stopped first; empty: they were not
  std::string last_roster_;
  std::string restart_reason_;  ///< of the restart that is under way; empty: none, or a membership change
  int changes_since_restart_ = 0;
  int stop_signal_ = 0;         ///< the first one that this attempt's workers got to end them
  std::uint64_t look_ = 0;      ///< number of the last RunChecks; 0: none yet
  RunChecks last_look_;         ///< the last one
  std::vector<Finding> found_;  ///< by what was looked at last
  std::string unfit_;           ///< why this node is no candidate; empty: it is one
  Placed place_compared_;       ///< in Phase::comparing
  TimePoint comparing_since_{};
  Duration compared_in_vain_{0};    ///< in all; see comparing_in_vain_max
  int condemned_by_ways_ = 0;       ///< so often
  TimePoint ways_due_{};            ///< not before then the ways that condemned this node are tried again
  std::optional<int> compared_in_;  ///< the count of membership changes when nodes were compared last
  std::string last_failure_;        ///< why the workers were restarted last, or its beginning
  TimePoint attempt_begin_{};
  Duration next_pause_{0};
};

}  // namespace torchup
