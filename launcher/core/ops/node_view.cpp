#include "launcher/core/ops/node_view.hpp"

#include <fmt/format.h>

#include <chrono>
#include <variant>

#include "launcher/core/record/hook_queue.hpp"
#include "rendezvous/core/text/endpoint.hpp"

namespace torchup {
namespace {

struct Concerns {
  bool operator()(const event::WorkerExited& e) const { return e.end == WorkerEnd::failed; }
  bool operator()(const event::SpawnFailed&) const { return true; }
  bool operator()(const event::WorkerAbandoned&) const { return true; }
  bool operator()(const event::Restarting&) const { return true; }
  bool operator()(const event::HangFound&) const { return true; }
  bool operator()(const event::HangOver&) const { return true; }
  bool operator()(const event::WorkerHung&) const { return true; }
  bool operator()(const event::StragglerFound&) const { return true; }
  bool operator()(const event::StragglerOver&) const { return true; }
  bool operator()(const event::WorkerStopped&) const { return true; }
  bool operator()(const event::WorkerUninterruptible&) const { return true; }
  bool operator()(const event::TimerExpired&) const { return true; }
  bool operator()(const event::ErrorFileRefused&) const { return true; }
  bool operator()(const event::IncidentRecorded&) const { return true; }
  bool operator()(const event::LogWriteFailed&) const { return true; }
  bool operator()(const event::ConsoleLost&) const { return true; }
  bool operator()(const event::StoreRefused&) const { return true; }
  bool operator()(const event::TakenOver&) const { return true; }
  bool operator()(const event::HookFailed&) const { return true; }
  bool operator()(const event::Warning&) const { return true; }
  bool operator()(const event::Fault&) const { return true; }
  template <class Other>
  bool operator()(const Other&) const {
    return false;
  }
};

JobView::Node own_node(const AttemptRecord* attempt, const LaunchConfig& config, const NodeStanding& standing) {
  JobView::Node node;
  node.host = node.node = standing.host;
  node.local_world_size = config.local_world_size;
  const bool runs = attempt && attempt->placement && attempt->end_us == 0;
  node.state = runs ? "seated" : "ready";
  if (!runs) return node;
  node.group_rank = attempt->placement->group_rank;
  node.first_rank = attempt->placement->first_rank;
  return node;
}

}  // namespace

JobView node_view(const RunRecord& record, const LaunchConfig& config, const NodeStanding& standing) {
  JobView view;
  const AttemptRecord* const attempt = record.attempts().empty() ? nullptr : &record.attempts().back();
  const bool runs = attempt && attempt->placement && attempt->end_us == 0;
  view.min_nodes = config.terms.min_nodes;
  view.max_nodes = config.terms.max_nodes;
  view.max_restarts = config.terms.max_restarts;
  view.restart_count = record.restart_count();
  if (runs) {
    const Placement& place = *attempt->placement;
    view.round = place.round;
    view.world_size = place.world_size;
    view.master = to_string(Endpoint{place.master_addr, place.master_port});
  }
  view.verdict = record.verdict();
  view.nodes.push_back(own_node(attempt, config, standing));
  if (view.verdict) {
    view.phase = "ended";
    view.last = view.verdict->reason;
  } else if (standing.torchruns) {
    view.phase = runs ? "running" : "gathering";
    view.last = "torchrun's agents decide on this job: this node tells of itself alone";
  } else {
    view.phase = cut_off_phase;
    view.waits_for = standing.waits_for;
    view.last = fmt::format("the coordinator has been out of reach for {} s: this node tells of itself alone",
                            std::chrono::duration_cast<std::chrono::seconds>(standing.out_of_reach).count());
  }
  return view;
}

bool is_told_to_coordinator(const EventBody& event, bool is_first) {
  return std::visit(Concerns{}, event) && (is_first || !concerns_job(event));
}

bool is_noted_by_coordinator(const EventBody& event) {
  return std::holds_alternative<event::MembershipChanged>(event) || std::holds_alternative<event::NodeUnfit>(event);
}

}  // namespace torchup
