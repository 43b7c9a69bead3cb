#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "launcher/core/agent/agent.hpp"
#include "launcher/core/record/exit_report.hpp"

/// A rehearsal's faults of this node. The machine that says when they are due is core/rehearsal/rehearsal; here it is
/// told what happens, and what it wants is done to workers that can bear it.
namespace torchup {

void Agent::rehearse(const rehearsal::Event& event) {
  if (!rehearsal_) return;
  for (const rehearsal::Action& action : rehearsal_->step(event, now_)) {
    if (const auto* wanted = std::get_if<rehearsal::Inject>(&action)) {
      inject(*wanted);
    } else {
      record(event::FaultInjected{std::get<rehearsal::Tell>(action).text});
    }
  }
}

void Agent::on(const FaultAnswered& event) {
  if (event.why.empty()) return rehearse(rehearsal::Injected{event.fault});
  rehearse(rehearsal::NotInjected{event.fault, event.why});
}

/// The workers of a round are about to start.
void Agent::rehearse_round() {
  if (!rehearsal_) return;
  const auto& node = config_.rehearsal.node;
  const bool first_here = rehearsal_->is_before_first_round();
  if (first_here && !node && placement_->restart_count + placement_->membership_changes > 0) {
    // When its time began nobody has told it.
    record(event::Warning{"this node came after the rehearsal's first round: it takes no part in the rehearsal"});
    rehearsal_.reset();
    return;
  }
  rehearsal::RoundBegins begins{placement_->group_rank, placement_->group_world_size, placement_->first_rank,
                                config_.local_world_size, placement_->world_size};
  if (node) {  // its name is what people see, whatever the order of ranks, and though it may have come a moment late
    begins.group_rank = GroupRank{node->index};
    begins.group_world_size = node->nodes;
  }
  rehearse(begins);
  tell_place(true);
}

/// To a starter: whether this node has a place in the job, once it has changed.
void Agent::tell_place(bool placed) {
  if (!config_.rehearsal.node || std::exchange(starter_knows_place_, placed) == placed) return;
  RehearsalReport report;
  report.what = placed ? RehearsalReport::What::placed : RehearsalReport::What::waiting;
  act(TellStarter{std::move(report)});
}

/// They are to stop, or have all ended; `well`: by themselves.
void Agent::rehearse_end_of_round(bool well) {
  if (!rehearsal_) return;
  act(ReleaseWorkers{});
  for (const rehearsal::Inject& each : std::exchange(awaiting_start_, {})) {
    rehearse(rehearsal::NotInjected{each.fault, "its worker was not started"});
  }
  rehearse(rehearsal::RoundEnds{well});
}

void Agent::rehearse_progress(const std::vector<StepSample>& samples) {
  if (!rehearsal_) return;
  rehearsal::ProgressSeen seen;
  for (const StepSample& sample : samples) {
    const WorkerSigns& signs = sample.signs;
    rehearsal::WorkerProgressSeen& worker = seen.workers.emplace_back();
    worker.local_rank = sample.local_rank;
    const bool steps = signs.beats != 0;
    worker.progress = steps ? signs.beats : signs.collectives;
    worker.progress_ns = steps ? signs.beat_ns : signs.collectives_ns;
    if (sample.progress) worker.step = sample.progress->step;
  }
  rehearse(seen);
}

void Agent::inject(const rehearsal::Inject& wanted) {
  const FaultKind kind = wanted.action.kind;
  if (is_of_rank(kind)) return inject_in_worker(wanted);
  if (kind != FaultKind::cut_node) {
    tell_of_fault(wanted);
    rehearse(rehearsal::Injected{wanted.fault});  // later there is nobody who could say so
  }
  if (kind == FaultKind::leave_node) return leave_for_rehearsal(wanted);
  act(InjectFault{wanted, 0});
}

/// To a starter, of a fault that ends or stops this node.
void Agent::tell_of_fault(const rehearsal::Inject& wanted) {
  if (!config_.rehearsal.node) return;
  RehearsalReport report;
  if (wanted.action.kind == FaultKind::stop_node) {
    report.what = RehearsalReport::What::stopped;
    report.lasts = wanted.action.lasts;
  } else {
    report.what = RehearsalReport::What::away;
    report.restart = wanted.restart;
    report.back = wanted.action.back;
    report.faults = rehearsal_->faults();
  }
  act(TellStarter{std::move(report)});
}

void Agent::inject_in_worker(const rehearsal::Inject& wanted) {
  const Worker& worker = worker_at(wanted.local_rank);
  if (worker.state == WorkerState::starting) return awaiting_start_.push_back(wanted);
  if (worker.state != WorkerState::running) {
    return rehearse(rehearsal::NotInjected{wanted.fault, "its worker has ended"});
  }
  act(InjectFault{wanted, worker.pid});
}

void Agent::inject_awaited(LocalRank local_rank) {
  const auto due = std::stable_partition(awaiting_start_.begin(), awaiting_start_.end(),
                                         [&](const auto& each) { return each.local_rank != local_rank; });
  const std::vector<rehearsal::Inject> wanted(due, awaiting_start_.end());
  awaiting_start_.erase(due, awaiting_start_.end());
  for (const rehearsal::Inject& each : wanted) inject_in_worker(each);
}

/// As by SIGTERM. Of a job of one node that is the job's end, which it does see.
void Agent::leave_for_rehearsal(const rehearsal::Inject& wanted) {
  left_for_rehearsal_ = !config_.one_node();
  leave_node(fmt::format("this node left: {}", to_text(wanted.action)), config_.one_node());
}

bool Agent::is_stopped_by_rehearsal(LocalRank local_rank) const {
  return rehearsal_ && rehearsal_->stops(local_rank, now_);
}

bool Agent::any_stopped_by_rehearsal() const { return rehearsal_ && rehearsal_->stops_somebody(now_); }

/// Nothing where there is no rehearsal, where another judges it, and on a node that does not see the job's end.
std::optional<RehearsalResult> Agent::end_of_rehearsal(const Verdict& verdict) {
  if (!rehearsal_ || left_for_rehearsal_) return std::nullopt;
  RehearsedJob job;
  job.exit_code = launcher_exit_code(whole_verdict(verdict, failures_), config_.propagate_exit_code);
  if (placement_) {
    job.restarts = placement_->restart_count;
    job.ranks = placement_->world_size;
  }
  if (!config_.rehearsal.node) return rehearsal_->ended(job);
  RehearsalReport report;
  report.what = RehearsalReport::What::ended;
  report.job = job;
  report.faults = rehearsal_->faults();
  act(TellStarter{std::move(report)});
  return std::nullopt;
}

}  // namespace torchup
