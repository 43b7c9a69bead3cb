#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/core/rehearsal/rehearsal_script.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

/// Faults of one rehearsal; `every` ends there.
inline constexpr std::size_t rehearsal_faults_max = 1000;
inline constexpr std::size_t rehearsal_failures_told = 8;  ///< reasons in the last line
/// Of this time the workers of a slow rank are stopped by/(1 + by), and run in the rest of it.
inline constexpr Duration slow_period = std::chrono::milliseconds{20};
[[nodiscard]] Duration slow_stopped_part(int by_percent);
/// How long after the end of a node's stop it may still be heard of.
inline constexpr Duration node_stop_slack = std::chrono::seconds{2};

/// What the agents of a node that a fault ends must know of the rehearsal when they are started again.
struct RehearsalStart {
  TimePoint zero{};        ///< of the job's first Placed; the clock is the machine's
  GroupRank node{0};       ///< of this node, in that round
  int nodes = 1;           ///< in that round
  std::int64_t step = -1;  ///< the newest that this node's workers had ended; -1: none
  friend bool operator==(const RehearsalStart&, const RehearsalStart&) = default;
};

/// What became of one fault.
struct RehearsedFault {
  std::string text = {};                       ///< "kill rank=2 (random)"
  Duration at{0};                              ///< since zero
  bool missing = false;                        ///< its target was not there
  std::optional<Duration> noticed_after = {};  ///< by this agent
  std::optional<Duration> going_on_after = {};
  std::optional<std::int64_t> steps_lost = {};
  std::size_t statement = 0;  ///< of the script; with `turn` alike on all nodes
  int turn = 0;               ///< so often the statement had come before
  friend bool operator==(const RehearsedFault&, const RehearsedFault&) = default;
};

namespace rehearsal {

// Events.

/// The workers of a round are to start. Which node this is, and of how many, is that of the first one.
struct RoundBegins {
  GroupRank group_rank{0};
  int group_world_size = 1;
  Rank first_rank{0};
  int local_world_size = 1;
  int world_size = 1;
};
/// They are to stop, or have all ended.
struct RoundEnds {
  bool well = false;  ///< all have ended with 0: whatever was done to them, they went on
};
/// The job is to end, or this node is to leave it: nothing comes any more.
struct JobEnds {};
/// This fault is brought about; of one that ends or stops this node: it is about to be.
struct Injected {
  std::size_t fault = 0;  ///< as in Inject
};
/// This fault was not brought about.
struct NotInjected {
  std::size_t fault = 0;  ///< as in Inject
  std::string why = {};
};
/// The launcher has seen that something is wrong: a worker failed, a link was lost, a hang was found.
struct TroubleSeen {};
/// What a living local worker shows of its progress: a stranger's word.
struct WorkerProgressSeen {
  LocalRank local_rank{0};
  std::uint64_t progress = 0;             ///< grows: steps that it has ended, else collectives
  std::int64_t progress_ns = 0;           ///< when it grew last, CLOCK_MONOTONIC
  std::optional<std::int64_t> step = {};  ///< the program's number of its last step
};
struct ProgressSeen {
  std::vector<WorkerProgressSeen> workers = {};
};
/// Nothing happened but time.
struct Wake {};
using Event = std::variant<RoundBegins, RoundEnds, JobEnds, Injected, NotInjected, TroubleSeen, ProgressSeen, Wake>;

// Actions.

/// Do this to ourselves, or to a worker of ours. `action.target` is drawn. Answer: Injected or NotInjected.
struct Inject {
  std::size_t fault = 0;  ///< its number on this node
  ScriptAction action = {};
  LocalRank local_rank{0};      ///< of actions on a rank
  RehearsalStart restart = {};  ///< for the node's next agent, where the action has `back`
  friend bool operator==(const Inject&, const Inject&) = default;
};
/// The event fault_injected: of a fault that was brought about here, or of one that has no target, of which all agents
/// tell.
struct Tell {
  std::string text = {};
  friend bool operator==(const Tell&, const Tell&) = default;
};
using Action = std::variant<Inject, Tell>;

}  // namespace rehearsal

/// How a job came out; `restarts` and `ranks` are those of its last round.
struct RehearsedJob {
  int exit_code = 0;
  int restarts = 0;
  int ranks = 0;
  friend bool operator==(const RehearsedJob&, const RehearsedJob&) = default;
};
/// The event rehearsal_ended, and the end of what the user sees.
struct RehearsalResult {
  bool passed = false;
  std::string text = {};  ///< "rehearsal passed", "rehearsal failed: expected restarts=0, was 1"
  std::vector<RehearsedFault> faults = {};
  int exit_code = 0;  ///< ours
  friend bool operator==(const RehearsalResult&, const RehearsalResult&) = default;
};
/// What people read of these: a line for each, and one above them; nothing without one.
[[nodiscard]] std::vector<std::string> rehearsal_table(const std::vector<RehearsedFault>& faults);
/// Holds what came of a script against what it expects.
[[nodiscard]] RehearsalResult rehearsal_result(const RehearsalScript& script, std::vector<RehearsedFault> faults,
                                               const RehearsedJob& job);

/// One agent's part in a rehearsal. Pure: same script, events and times in, same actions out.
///
/// All agents read the same script and come to the same faults; each does what concerns its own. Zero is the first
/// RoundBegins. `random` is drawn from the seed, the statement and how often it came: of a node among those that are
/// not away, of a rank among those of the round. A fault of a rank that falls between two rounds comes when the next
/// one begins. A node that was killed or left is away until it is back, for good without `back`.
///
/// A job goes on after a fault when all workers of this node have made progress again: once in a later round, or, as a
/// step may have been all but done, twice in the same one. What a stop or a cut does may come late: in the same round
/// progress counts from its end on. A node that is killed or leaves takes the round with it; where a fault that goes by
/// steps was seen so late that the next round had begun, that one goes on to its end.
class Rehearsal {
 public:
  explicit Rehearsal(RehearsalScript script, std::optional<RehearsalStart> start = std::nullopt);

  /// `now` never goes backwards.
  std::vector<rehearsal::Action> step(const rehearsal::Event& event, TimePoint now);
  [[nodiscard]] bool is_before_first_round() const { return !zero_; }
  /// When to send the next Wake if nothing else happens; empty while only an event can change anything.
  [[nodiscard]] std::optional<TimePoint> deadline() const;
  /// Whether a fault of this rehearsal stops the worker, now and then at least: nobody is to be warned of that.
  [[nodiscard]] bool stops(LocalRank worker, TimePoint now) const;
  /// Whether one stops anybody in the job, on whatever node: then others wait for him, and do not hang.
  [[nodiscard]] bool stops_somebody(TimePoint now) const;
  /// Whether one stops this node, or did until a moment ago.
  [[nodiscard]] bool stops_node(TimePoint now) const;
  [[nodiscard]] RehearsalResult ended(const RehearsedJob& job) const { return rehearsal_result(script_, faults_, job); }
  [[nodiscard]] const std::vector<RehearsedFault>& faults() const { return faults_; }

 private:
  struct Progress {
    std::uint64_t counted = 0;
    std::int64_t first_step = -1;  ///< in this round
    bool again = false;            ///< all that is needed
    bool marked = false;           ///< it had progress since the fault
  };
  struct Open {  ///< a fault after which the job does not go on yet
    std::size_t fault = 0;
    TimePoint at{};
    int round = 0;
    std::int64_t step_before = -1;
    FaultKind kind = FaultKind::kill_rank;
    TimePoint ends{};                       ///< of a stop or a cut
    std::map<int, Progress> workers = {};   ///< by local rank
    TimePoint newest{};                     ///< of the progress that counts
    std::optional<Duration> in_round = {};  ///< all went on in the same round after this time, which may end yet
  };
  struct Due {
    std::size_t statement = 0;
    int turn = 0;
    TimePoint when{};  ///< by the script: all agents reckon with it, whenever they come to it
  };
  struct Stop {
    std::size_t fault = 0;
    FaultKind kind = FaultKind::stop_rank;
    std::optional<LocalRank> worker = {};  ///< of this node; nothing: all of it
    bool here = false;                     ///< else it is another node's
    TimePoint until{};
  };

  void on(const rehearsal::RoundBegins& event, TimePoint now);
  void on(const rehearsal::RoundEnds& event, TimePoint now);
  void on(const rehearsal::JobEnds& event, TimePoint now);
  void on(const rehearsal::Injected& event, TimePoint now);
  void on(const rehearsal::NotInjected& event, TimePoint now);
  void on(const rehearsal::TroubleSeen& event, TimePoint now);
  void on(const rehearsal::ProgressSeen& event, TimePoint now);
  void on(const rehearsal::Wake& event, TimePoint now);
  [[nodiscard]] std::optional<TimePoint> next_time(std::size_t statement) const;
  [[nodiscard]] std::optional<Due> next_due(TimePoint now);
  void come_due(TimePoint now);
  void come_due_by_step(TimePoint now);
  void pass_over(TimePoint now);
  void come(const Due& due, TimePoint now);
  [[nodiscard]] ScriptAction drawn_action(const Due& due) const;
  [[nodiscard]] bool is_away(int node, TimePoint when) const;
  void note_absence(const ScriptAction& action, TimePoint when);
  [[nodiscard]] std::string why_not_there(const ScriptAction& action, TimePoint when) const;
  void strike(const Due& due, TimePoint now);
  [[nodiscard]] std::optional<LocalRank> own_target(const ScriptAction& action) const;
  void inject(const ScriptAction& action, LocalRank local_rank);
  [[nodiscard]] std::string told(const RehearsedFault& fault) const;
  void see(Open& open, const rehearsal::WorkerProgressSeen& seen, TimePoint now) const;

  RehearsalScript script_;
  std::optional<TimePoint> zero_;
  bool started_again_ = false;
  bool over_ = false;
  int own_node_ = 0;
  int nodes_ = 0;
  std::optional<rehearsal::RoundBegins> round_;  ///< nothing between rounds
  int rounds_ = 0;
  TimePoint round_began_{};
  std::vector<int> turns_;                        ///< of each statement, how often it came
  std::vector<Due> held_;                         ///< until a round begins
  std::map<int, std::optional<TimePoint>> away_;  ///< nodes, until when
  std::int64_t newest_step_ = -1;
  std::vector<RehearsedFault> faults_;
  std::vector<Open> open_;
  std::vector<Stop> stops_;
  std::vector<rehearsal::Action> actions_;
};

}  // namespace torchup
