#include "rendezvous/core/round/notes.hpp"

#include <fmt/format.h>

#include "rendezvous/core/text/names.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

/// Of the names of ranks that hang.
constexpr std::size_t ranks_noted_bytes_max = 256;

std::string text(const NodeJoined& note) {
  return fmt::format("node {} joins with {} workers; nodes: {}", note.host, note.workers, note.nodes);
}
std::string text(const NodeRefused& note) { return fmt::format("node {} refused: {}", note.host, note.reason); }
std::string text(const NodePutAside& note) {
  return fmt::format("node {} was lost {} times lately: put aside", note.host, note.losses);
}
std::string text(const NodeUnfit& note) { return fmt::format("node {} is unfit: {}", note.host, note.reason); }
std::string text(const NodeCutOff& note) {
  return fmt::format("node {}: the connection broke, it has {} to come back", note.host, seconds(note.left));
}
std::string text(const NodeLost& note) { return fmt::format("node {} {}", note.host, note.how); }
std::string text(const NodesDiffer& note) { return fmt::format("the nodes differ: {}", note.table); }
std::string text(const RoundFormed& note) {
  return fmt::format("round {}: {} nodes, {} workers; {} opens the worker store", note.round.value(), note.nodes,
                     note.workers, note.store_host);
}
std::string text(const RoundStopped& note) { return fmt::format("round {} ends: {}", note.round.value(), note.reason); }
std::string text(const FailureInDoubt& note) {
  return fmt::format("a worker failed while node {} is silent: is that the cause?", note.silent_host);
}
std::string text(const RestartGivenBack& note) {
  return fmt::format("the restart is not counted: node {} was lost before the failure", note.lost_host);
}
std::string text(const RosterChanged& note) { return fmt::format("waiting: {}", note.roster); }
std::string text(const JobRestored& note) {
  return fmt::format("restored in round {}; nodes that are awaited: {}", note.round.value(), note.awaited);
}
std::string text(const AllBack&) { return "all nodes that are left are back"; }
std::string text(const RoundGoesOn& note) {
  return fmt::format("round {} goes on: all {} nodes are back", note.round.value(), note.nodes);
}
std::string text(const SnapshotOutdated& note) {
  return fmt::format("node {} tells of round {}, which the saved state knows nothing of", note.host,
                     note.round.value());
}
std::string text(const CoordinatorSlept&) { return "the coordinator was asleep: all agents get a new lease"; }
std::string text(const TorchrunCame&) { return "a torchrun agent has come: the job goes on by torchrun's rules"; }
std::string text(const JobBegunAnew&) { return "the run id is used again: another job begins"; }
std::string text(const JobEndRequested& note) {
  return fmt::format("node {} ends the job: {}", note.host, note.reason);
}
std::string text(const JobConcluded& note) {
  return fmt::format("the job ends with {}: {}", note.exit_code, note.reason);
}

std::string text(const LateAwaited& note) {
  return fmt::format("stays a while to tell who comes only now: {}", join_names(note.hosts));
}

std::string text(const LookVoid& note) { return fmt::format("a look at all ranks tells nothing: {}", note.reason); }
std::string text(const HangNoted& note) {
  const std::string ranks = to_text(note.culprits);
  return fmt::format("no progress for {}: {}{}{}; action: {}", seconds(note.silence), note.kind,
                     ranks.empty() ? "" : ", ranks ", cut_text(ranks, ranks_noted_bytes_max), note.action);
}
std::string text(const HangOver& note) { return fmt::format("it goes on after {}", seconds(note.after)); }
std::string text(const StragglerNoted& note) { return note.text; }
std::string text(const OrderReceived& note) { return fmt::format("order by {}: {}", note.by, note.verb); }

}  // namespace

std::string to_text(const Note& note) {
  return std::visit([](const auto& happened) { return text(happened); }, note);
}

}  // namespace torchup
