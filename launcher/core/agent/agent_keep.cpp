#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "launcher/core/agent/agent.hpp"
#include "launcher/core/record/cause_words.hpp"

/// Workers that outlive their round. To keep them is this agent's own affair: to the coordinator a round ends and
/// begins as ever, and of all ways in which it can end, those in which another follows differ in one thing alone.
/// Whoever said so is asked to park where the others get SIGTERM, and has its place told where the others are started.
namespace torchup {

/// The one place where it is decided whether a worker is kept. It may change until the next round begins: then who was
/// to be kept is let go.
bool Agent::round_follows() const {
  return another_round_ && !foreign_ && !leaving_ && !verdict_ && drained_by_.empty();
}

void Agent::on(const WorkerSaid& event) {
  Worker& worker = worker_at(event.local_rank);
  if (worker.state != WorkerState::running) return;
  if (std::holds_alternative<WorkerStays>(event.word)) {
    if (phase_ != Phase::running || worker.stay == Stay::parked) return;
    worker.stay = Stay::yes;
    worker.blame_due.reset();
    worker.blamed_at.reset();
  } else if (std::holds_alternative<WorkerLeaves>(event.word)) {
    leaves(event);
  } else if (const auto* raised = std::get_if<WorkerRaised>(&event.word)) {
    raises(event.local_rank, raised->text);
  } else if (std::holds_alternative<WorkerParked>(event.word) && worker.stay == Stay::parking) {
    parks(event.local_rank, event.beats);
  }
}

/// It is a plain worker from here on. One that was to be kept cannot wait for a place any more.
void Agent::leaves(const WorkerSaid& event) {
  const LocalRank local_rank = event.local_rank;
  Worker& worker = worker_at(local_rank);
  worker.blame_due.reset();
  const bool blamed = std::exchange(worker.blamed_at, std::nullopt).has_value();
  const Stay before = std::exchange(worker.stay, Stay::no);
  if (before == Stay::yes && event.deaf && worker.kept > 0 && !blamed) {
    return kill(KillWorkers{{local_rank}}, 0, "it has closed its channel without reading its place");
  }
  if (before == Stay::no || before == Stay::yes) return;
  if (phase_ == Phase::stopping && !killed_) return signal({local_rank}, stop_signal_, true);
  kill(KillWorkers{{local_rank}}, 0, "it has left, and cannot be told its place");
}

/// A fault makes others raise, and their words may be here before it shows itself.
void Agent::raises(LocalRank local_rank, const std::string& text) {
  Worker& worker = worker_at(local_rank);
  if (worker.stay == Stay::parking || worker.stay == Stay::parked || worker.blame_due) return;
  record(event::Notice{fmt::format("rank {} asks whether it is to blame", id_of(local_rank).rank.value()),
                       LogLevel::debug, text});
  if (worker.stay == Stay::yes && phase_ == Phase::running) {
    worker.raised_others = cause_kind(text) == CauseKind::consequence;
    worker.blame_due = now_ + (worker.raised_others ? blame_patience_for_others : blame_patience);
    any_raised_ = true;
  } else {
    act(BlameWorker{local_rank});
  }
}

/// Who is the next to be told that what it raised is its own, and when: first whoever says nothing of others. A fault
/// has one cause: nobody while one that was blamed is about to end by it. That one may go on instead, and whoever waits
/// for it must not do so for ever.
std::optional<Agent::Blame> Agent::next_blame() const {
  if (!any_raised_ || phase_ != Phase::running) return {};
  std::optional<Blame> next;
  bool next_raised_others = false;
  TimePoint free_from{};
  for (const LocalRank local_rank : in_state(WorkerState::running)) {
    const Worker& worker = worker_at(local_rank);
    if (worker.blamed_at) free_from = std::max(free_from, *worker.blamed_at + config_.stop_grace);
    if (!worker.blame_due || worker.blamed_at) continue;
    if (next && std::pair{worker.raised_others, *worker.blame_due} >= std::pair{next_raised_others, next->at}) continue;
    next = Blame{local_rank, *worker.blame_due};
    next_raised_others = worker.raised_others;
  }
  if (next) next->at = std::max(next->at, free_from);
  return next;
}

void Agent::blame() {
  const auto next = next_blame();
  if (!next || now_ < next->at) return;
  worker_at(next->local_rank).blamed_at = now_;
  act(BlameWorker{next->local_rank});
}

void Agent::parks(LocalRank local_rank, std::uint64_t beats) {
  Worker& worker = worker_at(local_rank);
  if (worker.beats != beats) worker.kept = 0;
  worker.beats = beats;
  if (worker.kept == kept_in_a_row_max) {
    worker.stay = Stay::no;
    record(
        event::Warning{fmt::format("rank {} (pid {}) is not kept again: it has ended no step since it was kept {} "
                                   "times, and what it keeps may be the fault",
                                   id_of(local_rank).rank.value(), worker.pid, kept_in_a_row_max)});
    return signal({local_rank}, stop_signal_, true);
  }
  worker.stay = Stay::parked;
  after_worker_ended();
}

/// Those that wait for a place, or are about to be told it.
std::vector<LocalRank> Agent::parked() const {
  std::vector<LocalRank> found = in_state(WorkerState::running);
  std::erase_if(found, [this](LocalRank local_rank) { return worker_at(local_rank).stay != Stay::parked; });
  return found;
}

/// The round is over: tells those that can outlive it, if another follows. Returns who is to be signalled.
std::vector<LocalRank> Agent::tell_of_the_end() {
  EndRound over{{}, attempt_reason_};
  std::vector<LocalRank> others;
  const bool follows = round_follows();
  for (const LocalRank local_rank : in_state(WorkerState::running)) {
    Worker& worker = worker_at(local_rank);
    const bool asks = std::exchange(worker.blame_due, std::nullopt) && !worker.blamed_at;
    if (!follows) {
      worker.stay = Stay::no;
      if (asks) act(BlameWorker{local_rank});
    }
    if (worker.stay == Stay::parked || worker.stay == Stay::parking) continue;
    if (worker.stay == Stay::yes && !worker.blamed_at) {
      worker.stay = Stay::parking;
      over.workers.push_back(local_rank);
    } else {
      others.push_back(local_rank);
    }
  }
  if (!over.workers.empty()) act(std::move(over));
  return others;
}

/// No round follows after all: nobody is kept any more. Returns who was, or was to be.
std::vector<LocalRank> Agent::let_go() {
  std::vector<LocalRank> found;
  for (const LocalRank local_rank : in_state(WorkerState::running)) {
    Worker& worker = worker_at(local_rank);
    if (worker.stay != Stay::parking && worker.stay != Stay::parked) continue;
    worker.stay = Stay::no;
    found.push_back(local_rank);
  }
  return found;
}

/// Whether somebody who was kept is still to end: the job is not over before. Who has left its parking place while the
/// next round was awaited was killed for it, and may be one that nothing kills.
bool Agent::waits_for_kept() {
  if (auto let_gone = let_go(); !let_gone.empty()) return end_kept(std::move(let_gone)), true;
  if (!any_alive()) return false;
  phase_ = Phase::stopping;
  killed_ = true;
  deadline_ = now_ + unkillable_after;
  return true;
}

/// They end as any other: by the signal, and after the grace.
void Agent::end_kept(std::vector<LocalRank> workers) {
  phase_ = Phase::stopping;
  if (killed_) {
    deadline_ = now_ + unkillable_after;
    return kill(KillWorkers{std::move(workers)}, 0, "the others were killed");
  }
  const int wanted = verdict_ ? verdict_->stop_signal : leaving_ ? leaving_->stop_signal : SIGTERM;
  stop_signal_ = wanted == 0 ? SIGTERM : wanted;
  deadline_ = now_ + config_.stop_grace;
  signal(std::move(workers), stop_signal_, true);
}

/// Into the round that begins.
void Agent::take_along(Worker& worker) {
  worker.awaits_place = true;
  worker.pending.clear();
  worker.abort_reason.clear();
  worker.expired.clear();
  worker.exception.reset();
  ++worker.kept;
}

/// It knows its place.
void Agent::has_place(LocalRank local_rank) {
  Worker& worker = worker_at(local_rank);
  worker.awaits_place = false;
  if (worker.stay != Stay::parked) return;
  worker.stay = Stay::yes;
  if (phase_ == Phase::running) return;
  worker.stay = round_follows() ? Stay::parking : Stay::no;
  if (worker.stay == Stay::no) return signal({local_rank}, stop_signal_, true);
  act(EndRound{{local_rank}, attempt_reason_});
}

/// Whether the attempt is not over: somebody runs who is not parked.
bool Agent::any_busy() const {
  return std::ranges::any_of(workers_, [this](const Worker& worker) {
    const bool waits = phase_ == Phase::stopping && worker.stay == Stay::parked && !worker.awaits_place;
    return worker.state == WorkerState::starting || (worker.state == WorkerState::running && !waits);
  });
}

}  // namespace torchup
