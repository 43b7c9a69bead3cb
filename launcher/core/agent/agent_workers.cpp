#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "launcher/core/agent/agent.hpp"
#include "launcher/core/text/signals.hpp"

namespace torchup {

void Agent::on(const WorkerStarted& event) {
  Worker& worker = worker_at(event.local_rank);
  if (worker.awaits_place) return has_place(event.local_rank);
  worker.pid = event.pid;
  if (worker.state == WorkerState::abandoned) return act(KillWorkers{{event.local_rank}, parked().empty()});
  worker.state = WorkerState::running;
  const std::vector<int> pending = std::exchange(worker.pending, {});
  if (killed_)
    return kill(KillWorkers{{event.local_rank}, parked().empty()}, stop_signal_,
                "it was being started when the others were killed");
  // It was being started when the stop came.
  if (stop_signal_ != 0) return signal({event.local_rank}, stop_signal_, true);
  for (const int number : pending) signal({event.local_rank}, number, false);
  inject_awaited(event.local_rank);
  // It may open its page too late to find the request there.
  if (awaits_saving()) drain_insists_ = now_ + drain_patience;
}

void Agent::on(const SpawnFailed& event) {
  worker_at(event.local_rank).state = WorkerState::failed;
  WorkerEnded how{event.local_rank, spawn_failed_code, event.time_us, event.reason, ""};
  note_failure(how, false);
  if (phase_ == Phase::running) {
    record(event::SpawnFailed{id_of(event.local_rank), event.reason});
    report_failures(!event.permanent,
                    fmt::format("rank {} could not be started", id_of(event.local_rank).rank.value()));
  }
  after_worker_ended();
}

void Agent::on(const WorkerNotStarted& event) {
  Worker& worker = worker_at(event.local_rank);
  if (!std::exchange(worker.awaits_place, false)) worker.state = WorkerState::absent;
  after_worker_ended();
}

void Agent::on(const WorkerEnded& event) {
  Worker& worker = worker_at(event.local_rank);
  const bool abandoned = worker.state == WorkerState::abandoned;
  const WorkerEnd end = abandoned ? WorkerEnd::terminated : kind_of_end(worker, event.exit_code);
  WorkerEnded how = event;
  for (const std::string& reason : {worker.expired, worker.abort_reason}) {
    if (!reason.empty()) how.message = how.message.empty() ? reason : fmt::format("{}\n{}", reason, how.message);
  }
  event::WorkerExited exited;
  exited.worker = id_of(event.local_rank);
  exited.exit_code = how.exit_code;
  exited.end = end;
  exited.message = how.message;
  exited.error_file = how.error_file;
  if (how.progress) step_tally_.look(event.local_rank, *how.progress);
  exited.steps = step_tally_.of(event.local_rank);
  exited.ended_for = worker.abort_reason;
  exited.consequence = end != WorkerEnd::succeeded && is_consequence(how, end);
  if (end == WorkerEnd::failed) exited.binary = config_.program.executable;
  const bool consequence = exited.consequence;
  record(std::move(exited));
  if (abandoned) return;
  worker.state = end == WorkerEnd::succeeded ? WorkerState::succeeded : WorkerState::failed;
  if (end == WorkerEnd::succeeded) {
    if (diagnosis_.progress) diagnosis_.progress->worker_ended();
    if (event.exit_code == requeue_code) requeue(event.local_rank);
  } else {
    note_failure(how, consequence);
    rehearse(rehearsal::TroubleSeen{});
    if (end == WorkerEnd::failed) {
      const bool cause_lives = note_exceptions(how, consequence);
      if (!consequence || cause_lives || worker.blamed_at || !cause_may_come()) {
        tell_failures();
      } else {
        await_cause();
      }
    } else if (phase_ == Phase::running) {  // it did not heed the request to save, but ended by its signal
      end_job(shell_code(-event.exit_code), fmt::format("got {}: rank {} ended by it", signal_text(-event.exit_code),
                                                        id_of(event.local_rank).rank.value()));
    }
  }
  after_worker_ended();
  if (place_to_come_) obey(*std::exchange(place_to_come_, std::nullopt));
  if (phase_ == Phase::joining && parked() == in_state(WorkerState::running)) deadline_.reset();
}

/// The one place where a worker's end is called a success, a failure or a consequence.
WorkerEnd Agent::kind_of_end(const Worker& worker, int exit_code) const {
  const bool fine = exit_code == 0 || exit_code == requeue_code;
  // Whoever was aborted, by us or by the watchdog, may have a handler that ends as if all were well.
  const bool aborted = !worker.expired.empty() || !worker.abort_reason.empty();
  if (fine && !aborted) return WorkerEnd::succeeded;
  return phase_ == Phase::running && !drained_to_death(exit_code) ? WorkerEnd::failed : WorkerEnd::terminated;
}

bool Agent::drained_to_death(int exit_code) const { return exit_code < 0 && is_in(drained_by_, -exit_code); }

void Agent::on(const StatesSeen& event) {
  if (phase_ != Phase::running || paused_) return;
  std::vector<StateSample> samples = event.samples;
  for (StateSample& sample : samples) {
    if (sample.state == 'T' && is_stopped_by_rehearsal(sample.worker.local_rank)) sample.state = 'S';
  }
  for (EventBody& finding : state_watch_.look(samples, now_)) {
    const auto* sleeps = std::get_if<event::WorkerUninterruptible>(&finding);
    const std::string stuck = sleeps && sleeps->stuck ? to_text(finding)->text : "";
    record(std::move(finding));
    if (!stuck.empty()) end_job(failed_code, stuck);
  }
}

void Agent::on(const TimerExpired& event) {
  Worker& worker = worker_at(event.local_rank);
  if (worker.state != WorkerState::running) return;
  event::TimerExpired expired{id_of(event.local_rank), event.pid, event.scope, event.signal};
  worker.expired = to_text(EventBody{expired})->text;
  record(std::move(expired));
}

/// Goes on without the workers that outlive SIGKILL: only the kernel can end them.
void Agent::abandon() {
  abandoned_ = true;
  for (int i = 0; i < config_.local_world_size; ++i) {
    Worker& worker = worker_at(LocalRank{i});
    if (worker.state != WorkerState::running && worker.state != WorkerState::starting) continue;
    if (worker.stay == Stay::parked) continue;
    record(event::WorkerAbandoned{id_of(LocalRank{i})});
    worker.state = WorkerState::abandoned;
  }
  Leave word;
  word.exit_code = failed_code;
  word.reason = "a worker cannot be killed";
  word.failures = failures_;
  leave(std::move(word));
  after_worker_ended();
}

/// A worker has saved its state and wants the job to be started again later: no failure, and no restart now.
void Agent::requeue(LocalRank local_rank) {
  if (phase_ != Phase::running || leaving_) return;
  event::StateSaved saved{id_of(local_rank)};
  std::string reason = to_text(EventBody{saved})->text;
  record(std::move(saved));
  // Ranks agree on the step after which they save and stop. The others are about to: a signal now would cut them off.
  Leave word;
  word.exit_code = requeue_code;
  word.reason = reason;
  word.stop_signal = 0;
  word.saved = true;
  leave(std::move(word));
  rejoin_wanted_ = false;
  wait_for_own_end(std::move(reason));
}

/// Workers that still run are not signalled before they had the time to end by themselves.
void Agent::wait_for_own_end(std::string reason) {
  if (phase_ == Phase::stopping) return;
  if (phase_ != Phase::running) return stop(SIGTERM, std::move(reason));
  phase_ = Phase::stopping;
  stop_signal_ = 0;
  deadline_ = own_end_limit();
  cause_ends_.reset();
  attempt_reason_ = reason;
  record(event::Stopping{std::move(reason)});
  after_worker_ended();
}

void Agent::report_failures(bool may_restart, std::string reason) {
  failure_reported_ = true;
  // The coordinator has the last word; what can outlive the round is not ended before that.
  const JobTerms& terms = config_.terms;
  another_round_ = may_restart && (placement_->restart_count < terms.max_restarts ||
                                   (terms.max_restarts > 0 && terms.restart_window > Duration{0}));
  act(Send{WorkersFailed{placement_->round, told_failures(), may_restart}});
  stop(SIGTERM, std::move(reason));
}

/// The job's, but that no node whose worker lives on says that all is well, or that a signal has ended it.
Verdict Agent::own_verdict() const {
  Verdict verdict = *verdict_;
  const bool over = verdict.exit_code == 0 || signal_of_shell_code(verdict.exit_code);
  if (!abandoned_ || !over) return verdict;
  verdict.exit_code = failed_code;
  verdict.reason = fmt::format("{}; a worker cannot be killed", verdict.reason);
  return verdict;
}

/// Those that our stop caused come by local rank, as in torchrun's report; who heeded it first says nothing.
void Agent::order_failures() {
  const auto is_stopped = [this](const WorkerFailure& failure) {
    return failure.exit_code == -stop_signal_ || failure.exit_code == -SIGKILL;
  };
  if (failures_.size() < 3) return;
  const auto begin = std::find_if(failures_.begin() + 1, failures_.end(), is_stopped);
  std::stable_sort(begin, failures_.end(),
                   [](const auto& left, const auto& right) { return left.local_rank < right.local_rank; });
}

WorkerId Agent::id_of(LocalRank local_rank) const {
  const Rank first = placement_ ? placement_->first_rank : Rank{0};
  return {Rank{first.value() + local_rank.value()}, local_rank,
          workers_.at(static_cast<std::size_t>(local_rank.value())).pid};
}

std::vector<LocalRank> Agent::in_state(WorkerState state) const {
  std::vector<LocalRank> found;
  for (int i = 0; i < config_.local_world_size; ++i) {
    if (workers_[static_cast<std::size_t>(i)].state == state) found.emplace_back(i);
  }
  return found;
}

/// Those that live on though they were aborted.
std::vector<LocalRank> Agent::hung() const {
  std::vector<LocalRank> found = in_state(WorkerState::running);
  std::erase_if(found, [this](LocalRank local_rank) {
    return workers_.at(static_cast<std::size_t>(local_rank.value())).abort_reason.empty();
  });
  return found;
}

bool Agent::any_alive() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.state == WorkerState::starting || worker.state == WorkerState::running;
  });
}

}  // namespace torchup
