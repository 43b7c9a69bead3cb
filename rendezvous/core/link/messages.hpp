#pragma once

#include <array>
#include <compare>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/hang_terms.hpp"
#include "rendezvous/core/link/operations_messages.hpp"

/// What agents and the coordinator say to each other, as values. The bytes are in agent_codec, the rules in rendezvous.
///
/// The coordinator decides, agents report and obey. A round runs so:
///   agents: Join …            coordinator, when all are there: HostStore to group rank 0
///   group rank 0: StoreReady  coordinator: Placed to all; they start their workers
///   WorkersSucceeded from all, or WorkersFailed from one
///   coordinator: End to all, or StopWorkers to all, upon which each stops its workers and sends Join again.
///
/// Beside the round, while it runs, the coordinator may ask what workers do and tell what it has found: Examine,
/// answered by Examined or Arrivals, and HangTold. Nobody starts, stops or waits for that; what of it gets lost is not
/// said again. The same is true of what those hear who look at the job and steer it (operations_messages).
///
/// Every agent's life in a job ends with End or with LinkLost (agent_link). Keep-alives, reconnection and proof of the
/// token are the link's own frames and stand in agent_codec.
namespace torchup {

// Numbers of a job. What is larger, or negative where this page says from 0, is refused where it comes in: on the
// command line and by the decoders. So a sum of all workers of all nodes always fits an int.

inline constexpr int nodes_max = 1 << 16;  ///< nodes of a job, agents of a coordinator, places in a round
/// How the coordinator of one job begins its refusal of another's agents: who knows of further ports tries the next.
inline constexpr std::string_view port_of_another_job = "this port belongs to job ";
inline constexpr int local_workers_max = 1 << 14;  ///< workers of one node
inline constexpr int world_size_max = nodes_max * local_workers_max;
inline constexpr int restarts_max = 1 << 20;            ///< restarts of a job, and their limit
inline constexpr int membership_changes_max = 1 << 30;  ///< of a job
inline constexpr std::int64_t round_max = std::int64_t{1} << 62;
inline constexpr int exit_code_max = 255;
inline constexpr int signal_max = 64;
inline constexpr std::int64_t pid_max = std::int64_t{1} << 22;  ///< as Linux has it
inline constexpr std::int64_t time_us_max =
    std::int64_t{253'402'300'800} * 1'000'000 - 1;  ///< the end of the year 9999
inline constexpr Duration duration_max = std::chrono::hours{24 * 365};
inline constexpr std::size_t addresses_max = 64;      ///< of one node
inline constexpr std::size_t facts_max = 256;         ///< of one node
inline constexpr std::size_t failures_told_max = 64;  ///< of one node or verdict; the first ones matter
inline constexpr std::size_t unfit_bytes_max = 1024;  ///< of what is told of why a node is unfit

enum class RankOrder : std::uint8_t {
  address,        ///< by --local-addr, else the host's name, numbers in it compared as numbers; then by node id
  join,           ///< by the moment of a node's first join; survivors keep their order
  hostlist,       ///< by the place in JobTerms::hostlist; hosts that are not in it come last, by address
  index,          ///< by Join::group_rank, which a scheduler told: ranks are dense where a node is missing
  unknown = 255,  ///< one that only a newer agent knows: its Join is refused, for its ranks would be others
};

/// What is done about nodes whose facts (Join::facts) differ.
enum class SameWorld : std::uint8_t { off, warn, fail };

/// What must be the same on all nodes of a job. The first agent's terms stand; another's that differ are refused.
struct JobTerms {
  int min_nodes = 1;           ///< 1 to nodes_max
  int max_nodes = 1;           ///< min_nodes to nodes_max
  int nodes_multiple_of = 1;   ///< a round has a multiple of this many nodes; 1 to max_nodes
  int max_restarts = 0;        ///< after worker failures, of the whole job; 0 to restarts_max
  Duration restart_window{0};  ///< only restarts younger than this count against max_restarts; 0: all of them
  Duration join_timeout = std::chrono::seconds{600};  ///< longest wait for min nodes, > 0
  Duration last_call = std::chrono::seconds{30};      ///< wait for more than min nodes when a job first forms, >= 0
  Duration lease = std::chrono::seconds{10};          ///< silence after which an agent is expelled, > 0
  RankOrder rank_order = RankOrder::address;
  SameWorld same_world = SameWorld::warn;
  std::string hostlist = {};  ///< expected hosts, as Slurm writes them: "gpu[01-12],login"; empty: not known
  HangTimeout hang_timeout = {};
  OnHang on_hang = OnHang::report;
  Duration straggler_window = straggler_window_default;  ///< at least straggler_window_min; 0: nobody asks for arrivals
  bool own_run_id = false;                               ///< the run id names this job alone, and no later one
  bool store_proxy = false;  ///< workers reach their store by their own node's agent
  friend bool operator==(const JobTerms&, const JobTerms&) = default;
};

/// How one worker ended badly.
struct WorkerFailure {
  Rank rank{0};
  LocalRank local_rank{0};
  int exit_code = 0;  ///< the worker's own, or the negative signal number, as torchrun counts
  std::int64_t pid = 0;
  std::string host = {};        ///< of the node it ran on
  std::int64_t time_us = 0;     ///< UTC, microseconds since 1970, by that node's clock; for people only
  std::string message = {};     ///< what is known of the cause; may be empty
  std::string error_file = {};  ///< the worker's own error file on its node; empty when it left none
  bool consequence = false;     ///< it died of another's end, by its own words, or was stopped
  /// When an exception left its program, by its node's CLOCK_MONOTONIC; 0: none has, or it is not known. It is not told
  /// to other nodes.
  std::int64_t raised_at_ns = 0;
  friend bool operator==(const WorkerFailure&, const WorkerFailure&) = default;
};

/// Index of the root cause in `failures` (in the order they were noticed), which is not empty: the first that is no
/// consequence, or that was earlier on that one's node: by `raised_at_ns` where both have one, else in whole seconds,
/// as error files count. Nodes' clocks are not compared. Where all are consequences the same of all.
[[nodiscard]] std::size_t root_cause(const std::vector<WorkerFailure>& failures);

/// How the job ended, the same for every node.
struct Verdict {
  int exit_code = 0;                         ///< README, "Exit codes"
  std::string reason = {};                   ///< one line for people
  std::vector<WorkerFailure> failures = {};  ///< in the order they were noticed, the root cause first; empty on success
  int stop_signal = 15;   ///< what workers that still run get first: SIGTERM, or what the user pressed; 0: nothing yet,
                          ///< they are about to end by themselves
  bool kill_now = false;  ///< no grace: the user asked twice
  bool time_ends = false;     ///< the job's time ends: who works is to be asked to save and stop
  std::string reporter = {};  ///< host that tells of the end and writes what is the whole job's; empty: nobody said
  bool save = false;  ///< with stop signal 0: workers that have ended a step are asked to save their state first
  friend bool operator==(const Verdict&, const Verdict&) = default;
};

/// How long an agent keeps its workers when the coordinator's process has ended and nobody listens in its place. It
/// counts from the sending of the last keep-alive that was answered.
inline constexpr Duration workers_wait = std::chrono::seconds{30};
/// A coordinator that starts again expels nobody sooner than this, and completes no round that its agents restate
/// unless all are back. So an agent has stopped its workers before that, though its clock may be a tenth slower.
inline constexpr Duration return_limit_default = workers_wait * 10 / 9;
/// Agents that lost their coordinator dial so often that one that starts again has heard of them by then, unless
/// something hinders them.
inline constexpr Duration redial_limit = std::chrono::seconds{2};

// Agent to coordinator.

/// Something that should be the same on all nodes, such as {"torch", "2.15.0"} or {"program", "sha256:…"}.
struct Fact {
  std::string name = {};
  std::string value = {};
  friend bool operator==(const Fact&, const Fact&) = default;
};

/// Tells a round's store from others at one port.
using StoreKey = std::array<std::uint8_t, 16>;

/// One agent's place in a round.
struct Placement {
  Round round{0};
  GroupRank group_rank{0};
  int group_world_size = 1;
  Rank first_rank{0};  ///< rank of this node's local rank 0; its workers are consecutive
  int world_size = 1;
  Rank first_role_rank{0};
  int role_world_size = 1;
  std::string master_addr = {};  ///< host name or address without brackets
  Port master_port{0};
  int restart_count = 0;       ///< restarts after worker failures so far, of the whole job
  int membership_changes = 0;  ///< rounds that ended because a node came or went; never counted as restarts
  StoreKey store_key{};        ///< with --store-proxy: what links to the round's store bring; else zeros
  /// With --store-proxy: where on 127.0.0.1 this node's workers reach the store. This node's own matter, and 0 else.
  Port local_store{0};
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// This node has no worker running and wants a place in the next round. Said at the start and after each StopWorkers.
struct Join {
  NodeId node{""};        ///< "host_pid_n"; the link makes it where it is empty
  std::string host = {};  ///< for people, and for the order of ranks
  std::vector<std::string> addresses =
      {};                         ///< where other nodes may reach this one, best first; the link fills an empty one
  bool address_demanded = false;  ///< the first of `addresses` is published, whatever the coordinator sees
  int local_world_size = 1;       ///< 1 to local_workers_max
  std::string role = "default";
  std::optional<GroupRank> group_rank = {};  ///< by --node-rank, or see RankOrder::index; all nodes have one, or none
  JobTerms terms = {};
  std::vector<Fact> facts = {};
  /// The last place of this agent, `after_stop`; a coordinator that lost its memory learns from it.
  std::optional<Placement> former = {};
  /// Why no worker of the job should run here now: such a node is no candidate for a place, and joins again when that
  /// has changed. Empty: it is fit.
  std::string unfit = {};
  /// Where it is unfit: that will not change, and the job is not to begin without it.
  bool needed = false;
  /// And how the job ends then, 1 to exit_code_max.
  int needed_code = exit_code::too_few;
  friend bool operator==(const Join&, const Join&) = default;
};
/// How an agent ends whose node is unfit where nobody waits until it is fit again: alone, or among torchrun's agents.
inline constexpr int unfit_code = exit_code::unfit;
[[nodiscard]] inline std::string unfit_text(const Join& join) { return "this node is unfit: " + join.unfit; }
/// Whether the others may go on without it.
[[nodiscard]] inline bool stands_aside(const Join& join) { return !join.unfit.empty() && !join.needed; }
struct StoreReady {
  Round round{0};
  Port port{0};
  StoreKey key{};  ///< Placement::store_key
  friend bool operator==(const StoreReady&, const StoreReady&) = default;
};
struct WorkersFailed {
  Round round{0};
  std::vector<WorkerFailure> failures = {};  ///< at least one
  bool may_restart = true;  ///< false: another attempt cannot do better (no such program), the job ends with 1
  friend bool operator==(const WorkersFailed&, const WorkersFailed&) = default;
};
struct WorkersSucceeded {
  Round round{0};
  friend bool operator==(const WorkersSucceeded&, const WorkersSucceeded&) = default;
};
/// This node ends the job for everybody (a user's Ctrl-C), or leaves it (TERM). Answered by End: to all, or to this
/// node alone. May be said again with `kill_now`.
struct Leave {
  bool ends_job = true;  ///< always so when this process hosts the coordinator
  int exit_code = 0;
  std::string reason = {};
  std::vector<WorkerFailure> failures = {};  ///< usually none
  int stop_signal = 15;                      ///< as in Verdict
  bool kill_now = false;                     ///< as in Verdict
  bool time_ends = false;                    ///< as in Verdict
  bool saved = false;                        ///< a worker of the round has saved its state and ended by itself
  friend bool operator==(const Leave&, const Leave&) = default;
};
/// What a leave asks for: the verdict of its node alone, or of the job.
[[nodiscard]] inline Verdict verdict_of(const Leave& leave) {
  return {.exit_code = leave.exit_code,
          .reason = leave.reason,
          .failures = leave.failures,
          .stop_signal = leave.stop_signal,
          .kill_now = leave.kill_now,
          .time_ends = leave.time_ends};
}
/// Answer to Examine, in parts: looks at this node's ranks (core/diagnosis/look_parts).
struct Examined {
  std::uint64_t number = 0;  ///< as in Examine
  std::string part = {};     ///< diagnosis_part_bytes_max at most
  bool last = true;
  friend bool operator==(const Examined&, const Examined&) = default;
};
/// A person wants to see what all ranks do.
struct AskLook {
  friend bool operator==(const AskLook&, const AskLook&) = default;
};
/// Answer to an Examine that asks for arrivals alone: core/diagnosis/told_parts.
struct Arrivals {
  std::string part = {};  ///< diagnosis_part_bytes_max at most
  friend bool operator==(const Arrivals&, const Arrivals&) = default;
};
using AgentMessage = std::variant<Join, StoreReady, WorkersFailed, WorkersSucceeded, Leave, Examined, AskLook, Arrivals,
                                  NodeEvent, Ask, Answer>;

/// Where an agent stands, restated by its link on a new connection: whatever was lost on the old one follows from it.
struct Resume {
  enum class Stage : std::uint8_t {
    ready,      ///< Join was the last word; `placement` is empty
    running,    ///< placed by `placement`
    stopping,   ///< told to stop the round of `placement` (which is `after_stop`), its Join is still to come
    succeeded,  ///< all workers of `placement`'s round exited 0
    failed,     ///< some of them failed: `failures`
  };
  Join join = {};  ///< its last one
  Stage stage = Stage::ready;
  std::optional<Placement> placement = {};
  std::optional<StoreReady> store = {};  ///< the last round that this agent opened a store for
  WorkersFailed failed = {};             ///< meaningful in Stage::failed
  friend bool operator==(const Resume&, const Resume&) = default;
};

// Coordinator to agent.

/// Open a fresh, empty worker store for this round and say StoreReady.
struct HostStore {
  Round round{0};
  /// Where the round's workers may come from: addresses and networks (core/source_list), SourceList::items_max at most.
  std::vector<std::string> sources = {};
  friend bool operator==(const HostStore&, const HostStore&) = default;
};
/// Start the workers.
struct Placed {
  Placement placement = {};
  /// Whether the coordinator watches over the round's progress. Not where torchrun's agents take part: there each node
  /// judges its own ranks.
  bool watched = true;
  friend bool operator==(const Placed&, const Placed&) = default;
};

enum class StopCause : std::uint8_t {
  worker_failure,     ///< a restart was used up
  membership_change,  ///< a node came or went
  fenced,             ///< this node lost its place or the way to the coordinator: KILL at once, no grace
};
/// The job's counters as an agent knows them once the round of `place` was stopped for `cause`. So a coordinator that
/// lost its memory counts a restart that it had told of neither twice nor not at all.
[[nodiscard]] inline Placement after_stop(Placement place, StopCause cause) {
  constexpr int most = std::numeric_limits<int>::max();
  int& count = cause == StopCause::worker_failure ? place.restart_count : place.membership_changes;
  if (count < most) ++count;
  return place;
}
/// Stop this round's workers (or forget the round, when they were not started yet), then send Join again.
struct StopWorkers {
  Round round{0};
  StopCause cause = StopCause::membership_change;
  std::string reason = {};
  /// The stop is planned: workers that have ended a step are asked to save their state and stop together, before they
  /// get a signal.
  bool save = false;
  bool stands_by = false;  ///< no place follows for this node: it keeps none of its workers
  friend bool operator==(const StopWorkers&, const StopWorkers&) = default;
};
/// Workers are asked to save their state on all nodes at once, and one may have before its agent hears of it: its word
/// that the job is to be started again later is void then, to whoever has said it and to whoever hears it.
[[nodiscard]] inline bool is_void(const Leave& leave, const StopWorkers& stop) {
  return leave.saved && !leave.kill_now && stop.save;
}
/// The job is over: stop what still runs, report, exit. Said once more when somebody asked for `kill_now`.
struct End {
  Verdict verdict = {};
  friend bool operator==(const End&, const End&) = default;
};
/// One line for people about what the job, or the link, waits for; sent when it changes.
struct Waiting {
  std::string roster = {};
  bool of_link = false;  ///< the link itself says so, not the coordinator; not told by one to the other
  friend bool operator==(const Waiting&, const Waiting&) = default;
};
/// Look at your ranks, and answer with this number.
struct Examine {
  std::uint64_t number = 0;
  bool asked = false;          ///< a person waits for it: as fast as possible
  bool arrivals_only = false;  ///< only when they arrived at collectives is wanted: answered by Arrivals
  friend bool operator==(const Examine&, const Examine&) = default;
};
/// What the coordinator has found about ranks that hang or are late, in parts (core/diagnosis/told_parts).
struct HangTold {
  std::string part = {};  ///< diagnosis_part_bytes_max at most
  bool last = true;
  friend bool operator==(const HangTold&, const HangTold&) = default;
};
using CoordinatorMessage = std::variant<HostStore, Placed, StopWorkers, End, Waiting, Examine, HangTold, Ask, Answer>;

/// Of messages that no round hears of.
template <class T>
concept OfDiagnosis = std::same_as<T, Examined> || std::same_as<T, AskLook> || std::same_as<T, Arrivals> ||
    std::same_as<T, Examine> || std::same_as<T, HangTold>;
template <class T>
concept BesideRounds = OfDiagnosis<T> || OfOperations<T>;

}  // namespace torchup
