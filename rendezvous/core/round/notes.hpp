#pragma once

#include <string>
#include <variant>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/diagnosis/rank_set.hpp"
#include "rendezvous/core/link/messages.hpp"

/// What happened to a job, for its log: one value per transition, which carries what a reader of the log asks for.
///
/// Names of nodes are host names. Texts that agents said (reasons, tables) are in here as they came: whoever writes
/// them to a terminal escapes them.
namespace torchup {

/// An agent became a member of the job, which has `nodes` members now.
struct NodeJoined {
  std::string host = {};
  int workers = 0;
  int nodes = 0;
  friend bool operator==(const NodeJoined&, const NodeJoined&) = default;
};
/// An agent does not fit; it was told `reason`.
struct NodeRefused {
  std::string host = {};
  std::string reason = {};
  friend bool operator==(const NodeRefused&, const NodeRefused&) = default;
};
/// A host was lost so often lately that it is used only if nobody else is there.
struct NodePutAside {
  std::string host = {};
  int losses = 0;
  friend bool operator==(const NodePutAside&, const NodePutAside&) = default;
};
/// A member says why no worker of the job should run on it now; where it says another reason, again.
struct NodeUnfit {
  std::string host = {};
  std::string reason = {};
  friend bool operator==(const NodeUnfit&, const NodeUnfit&) = default;
};
/// A connection broke; the node is a member for `left` more.
struct NodeCutOff {
  std::string host = {};
  Duration left{0};
  friend bool operator==(const NodeCutOff&, const NodeCutOff&) = default;
};
/// A node is a member no more. `how` goes on where "node HOST" begins: "has ended".
struct NodeLost {
  std::string host = {};
  std::string how = {};
  friend bool operator==(const NodeLost&, const NodeLost&) = default;
};
/// The nodes of a round differ in what should be the same; `table` has a line for each difference.
struct NodesDiffer {
  std::string table = {};
  friend bool operator==(const NodesDiffer&, const NodesDiffer&) = default;
};

/// A round was decided; `store_host` opens the worker store.
struct RoundFormed {
  Round round{0};
  int nodes = 0;
  int workers = 0;
  std::string store_host = {};
  friend bool operator==(const RoundFormed&, const RoundFormed&) = default;
};
struct RoundStopped {
  Round round{0};
  StopCause cause = StopCause::membership_change;
  std::string reason = {};
  friend bool operator==(const RoundStopped&, const RoundStopped&) = default;
};
/// A worker failed while this node is silent, which may be the cause: the decision waits.
struct FailureInDoubt {
  std::string silent_host = {};
  friend bool operator==(const FailureInDoubt&, const FailureInDoubt&) = default;
};
/// The failure that a restart was counted for was collateral of the loss of this node.
struct RestartGivenBack {
  std::string lost_host = {};
  friend bool operator==(const RestartGivenBack&, const RestartGivenBack&) = default;
};
/// What the job waits for has changed.
struct RosterChanged {
  std::string roster = {};
  friend bool operator==(const RosterChanged&, const RosterChanged&) = default;
};

/// The coordinator goes on from a snapshot and waits for `awaited` members.
struct JobRestored {
  Round round{0};
  int awaited = 0;
  friend bool operator==(const JobRestored&, const JobRestored&) = default;
};
/// Every member of a restored job is back, or was given up.
struct AllBack {
  friend bool operator==(const AllBack&, const AllBack&) = default;
};
/// A coordinator without a snapshot has heard from all nodes of the round that ran before it.
struct RoundGoesOn {
  Round round{0};
  int nodes = 0;
  friend bool operator==(const RoundGoesOn&, const RoundGoesOn&) = default;
};
/// A node was in a later round than the snapshot that the coordinator went on from.
struct SnapshotOutdated {
  std::string host = {};
  Round round{0};
  friend bool operator==(const SnapshotOutdated&, const SnapshotOutdated&) = default;
};
/// The coordinator's own clock shows a gap: silence in it is nobody's fault.
struct CoordinatorSlept {
  friend bool operator==(const CoordinatorSlept&, const CoordinatorSlept&) = default;
};
/// An agent of torchrun's has come; from here on the job goes by torchrun's rules.
struct TorchrunCame {
  friend bool operator==(const TorchrunCame&, const TorchrunCame&) = default;
};

/// An agent that is new to the run id has come after the verdict: another job begins.
struct JobBegunAnew {
  friend bool operator==(const JobBegunAnew&, const JobBegunAnew&) = default;
};
/// One node ends the job for all.
struct JobEndRequested {
  std::string host = {};
  std::string reason = {};
  friend bool operator==(const JobEndRequested&, const JobEndRequested&) = default;
};
struct JobConcluded {
  int exit_code = 0;
  std::string reason = {};
  friend bool operator==(const JobConcluded&, const JobConcluded&) = default;
};

/// Whoever hosts the coordinator stays a while: these hosts were expected and have not come yet.
struct LateAwaited {
  std::vector<std::string> hosts = {};
  friend bool operator==(const LateAwaited&, const LateAwaited&) = default;
};

/// A look at all ranks told nothing.
struct LookVoid {
  std::string reason = {};
  friend bool operator==(const LookVoid&, const LookVoid&) = default;
};
/// The ranks get on no more; `kind` and `action` as events have them.
struct HangNoted {
  Duration silence{0};
  std::string kind = {};
  RankSet culprits = {};
  std::string action = {};
  friend bool operator==(const HangNoted&, const HangNoted&) = default;
};
/// They do again.
struct HangOver {
  Duration after{0};
  friend bool operator==(const HangOver&, const HangOver&) = default;
};
/// A rank, or node, has become a straggler, or is none any more.
struct StragglerNoted {
  std::string text = {};
  friend bool operator==(const StragglerNoted&, const StragglerNoted&) = default;
};

/// An order was accepted; `verb` as in core/round/orders.
struct OrderReceived {
  std::string verb = {};
  std::string by = {};
  friend bool operator==(const OrderReceived&, const OrderReceived&) = default;
};

using Note =
    std::variant<NodeJoined, NodeRefused, NodePutAside, NodeUnfit, NodeCutOff, NodeLost, NodesDiffer, RoundFormed,
                 RoundStopped, FailureInDoubt, RestartGivenBack, RosterChanged, JobRestored, AllBack, RoundGoesOn,
                 SnapshotOutdated, CoordinatorSlept, TorchrunCame, JobBegunAnew, JobEndRequested, JobConcluded,
                 LookVoid, HangNoted, HangOver, StragglerNoted, LateAwaited, OrderReceived>;

/// The line of the log. A table of differences makes it several.
[[nodiscard]] std::string to_text(const Note& note);

}  // namespace torchup
