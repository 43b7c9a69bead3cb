#include "launcher/core/agent.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include "launcher/core/exit_report.hpp"

namespace torchup {
namespace {

/// How long a killed worker may take to go. Longer means that the kernel cannot end it.
constexpr Duration unkillable_after = std::chrono::seconds{10};
/// How long a leaving agent waits for the coordinator's last word.
constexpr Duration last_word_wait = std::chrono::seconds{2};
/// Attempts that lived so long do not count as failing again and again.
constexpr Duration long_attempt = std::chrono::seconds{10};
constexpr int failed_code = 1;
/// What a shell says of a program that it cannot start.
constexpr int spawn_failed_code = 126;

bool contains(const std::vector<int>& list, int number) {
  return std::find(list.begin(), list.end(), number) != list.end();
}

}  // namespace

Agent::Agent(const LaunchConfig& config, AgentIdentity identity)
    : config_{config}, identity_{std::move(identity)}, workers_(static_cast<std::size_t>(config.local_world_size)) {}

std::vector<AgentAction> Agent::step(const AgentEvent& event, TimePoint now) {
  now_ = now;
  if (phase_ != Phase::finished) std::visit([this](const auto& what) { on(what); }, event);
  if (phase_ != Phase::finished) due();
  return std::exchange(actions_, {});
}

std::optional<TimePoint> Agent::deadline() const {
  if (phase_ == Phase::finished) return std::nullopt;
  if (!job_end_ || leaving_ || verdict_) return deadline_;
  return deadline_ ? std::min(*deadline_, *job_end_) : *job_end_;
}

void Agent::on(const Begin&) {
  if (config_.timeout > Duration{0}) job_end_ = now_ + config_.timeout;
  join();
}

void Agent::on(const FromCoordinator& event) {
  std::visit([this](const auto& message) { obey(message); }, event.message);
}

void Agent::on(const CoordinatorLost& event) {
  if (!verdict_) {
    verdict_ = leaving_ ? Verdict{.exit_code = leaving_->exit_code, .reason = leaving_->reason, .failures = failures_}
                        : Verdict{.exit_code = event.exit_code, .reason = event.reason, .failures = failures_};
  }
  stop(SIGTERM, event.reason);
}

void Agent::on(const StoreOpened& event) { act(Send{StoreReady{event.round, event.port}}); }

void Agent::on(const StoreFailed& event) {
  Leave word;
  word.exit_code = 67;
  word.reason = "no worker store for round " + std::to_string(event.round.value()) + ": " + event.reason;
  leave(std::move(word));
  stop(SIGTERM, event.reason);
}

void Agent::on(const WorkerStarted& event) {
  auto& worker = workers_.at(static_cast<std::size_t>(event.local_rank.value()));
  worker = {WorkerState::running, event.pid};
}

void Agent::on(const SpawnFailed& event) {
  workers_.at(static_cast<std::size_t>(event.local_rank.value())).state = WorkerState::failed;
  note_failure(WorkerEnded{event.local_rank, spawn_failed_code, event.time_us, event.reason, ""}, !event.permanent);
  after_worker_ended();
}

void Agent::on(const WorkerNotStarted& event) {
  workers_.at(static_cast<std::size_t>(event.local_rank.value())).state = WorkerState::absent;
  after_worker_ended();
}

void Agent::on(const WorkerEnded& event) {
  auto& worker = workers_.at(static_cast<std::size_t>(event.local_rank.value()));
  if (worker.state == WorkerState::abandoned) return;
  worker.state = event.exit_code == 0 ? WorkerState::succeeded : WorkerState::failed;
  if (event.exit_code == requeue_code) {
    worker.state = WorkerState::succeeded;
    requeue(event.local_rank);
  } else if (event.exit_code != 0) {
    note_failure(event, true);
  }
  after_worker_ended();
}

void Agent::on(const GiveUp& event) { end_job(failed_code, event.reason); }

void Agent::on(const DescendantsGone&) {
  if (phase_ != Phase::sweeping) return;
  phase_ = Phase::idle;
  deadline_.reset();
  if (leaving_ && !verdict_) deadline_ = now_ + last_word_wait;
  settle();
}

void Agent::on(const SignalArrived& event) {
  const int number = event.number;
  if (contains(config_.drain_signals, number) && !contains(drained_by_, number) && phase_ == Phase::running) {
    drained_by_.push_back(number);
    say(Say::Level::info,
        "got " + signal_text(number) + ": the workers are asked to save and stop (again to end the job)");
    act(DrainWorkers{});
    return;
  }
  if (contains(config_.forward_signals, number) && !contains(config_.end_signals, number)) {
    act(SignalWorkers{number, false, "forwarded " + signal_text(number)});
    return;
  }
  const bool forcing = number == SIGINT || number == SIGQUIT;
  if (leaving_) {
    // Somebody has no time for workers that are about to end by themselves: from now on it is a stop like any other.
    if (phase_ == Phase::stopping && stop_signal_ == 0) return stop(number, "got " + signal_text(number));
    if (!forcing || leaving_->kill_now) return;
    leaving_->kill_now = true;
    act(Send{*leaving_});
    kill("second " + signal_text(number));
    return;
  }
  say(Say::Level::warning, "Received " + std::to_string(number) + " death signal, shutting down workers" +
                               (number == SIGINT ? " (Ctrl-C again to force)" : ""));
  Leave word;
  // TERM and HUP mean this node; what people type, and what the user listed, means the job.
  word.ends_job = config_.end_signals_listed || forcing || config_.one_node();
  word.exit_code = 128 + number;
  word.reason = "got " + signal_text(number);
  word.stop_signal = number;
  std::string reason = word.reason;
  leave(std::move(word));
  rejoin_wanted_ = false;
  stop(number, std::move(reason));
}

void Agent::obey(const HostStore& message) {
  if (leaving_) return;
  act(OpenStore{message.round});
}

void Agent::obey(const Placed& message) {
  if (phase_ != Phase::joining || leaving_ || verdict_) return;
  const bool restart = !placement_ || placement_->restart_count != message.placement.restart_count;
  changes_since_restart_ = restart ? 0 : changes_since_restart_ + 1;
  placement_ = message.placement;
  failures_.clear();
  failure_reported_ = false;
  killed_ = false;
  attempt_begin_ = now_;
  phase_ = Phase::running;
  for (Worker& worker : workers_) worker = {WorkerState::starting, 0};
  act(StartWorkers{*placement_, attempt_name(placement_->restart_count, changes_since_restart_, placement_->round)});
}

void Agent::obey(const StopWorkers& message) {
  if (leaving_ || verdict_) return;
  if (phase_ == Phase::joining) return join();  // the round was never placed here
  if (placement_->round != message.round) return;
  rejoin_wanted_ = true;
  stop(SIGTERM, message.reason);
  if (message.cause == StopCause::fenced) kill(message.reason);
}

void Agent::obey(const End& message) {
  verdict_ = message.verdict;
  rejoin_wanted_ = false;
  if (message.verdict.stop_signal == 0) {
    wait_for_own_end(message.verdict.reason);
  } else {
    stop(message.verdict.stop_signal, message.verdict.reason);
  }
  if (message.verdict.kill_now) kill(message.verdict.reason);
}

void Agent::obey(const Waiting& message) {
  if (message.roster == last_roster_) return;
  last_roster_ = message.roster;
  say(Say::Level::info, message.roster);
}

/// Whatever time alone brings.
void Agent::due() {
  if (job_end_ && now_ >= *job_end_ && !leaving_ && !verdict_) {
    end_job(failed_code, "the job ran longer than --timeout allows");
    return;
  }
  if (!deadline_ || now_ < *deadline_) return;
  deadline_.reset();
  if (phase_ == Phase::stopping) {
    if (killed_) {
      abandon();
    } else if (stop_signal_ == 0) {
      stop(SIGTERM, "the others have saved their state and ended");
    } else {
      kill("the grace is over");
    }
  } else if (phase_ == Phase::pausing) {
    join();
  } else if (phase_ == Phase::idle && leaving_) {
    verdict_ = Verdict{.exit_code = leaving_->exit_code, .reason = leaving_->reason, .failures = failures_};
    settle();
  }
}

/// Ends the job on all nodes for a reason that is no worker's failure.
void Agent::end_job(int exit_code, std::string reason) {
  if (leaving_ || verdict_) return;
  Leave word;
  word.exit_code = exit_code;
  word.reason = reason;
  leave(std::move(word));
  rejoin_wanted_ = false;
  stop(SIGTERM, std::move(reason));
}

/// Goes on without the workers that outlive SIGKILL: only the kernel can end them.
void Agent::abandon() {
  for (Worker& worker : workers_) {
    if (worker.state != WorkerState::running && worker.state != WorkerState::starting) continue;
    worker.state = WorkerState::abandoned;
    say(Say::Level::error,
        "Process " + std::to_string(worker.pid) +
            " did not exit after SIGKILL within 10s; abandoning and continuing teardown. Worker may be in "
            "uninterruptible kernel sleep (e.g. wedged on GPU/NIC); host may need to be recycled.");
  }
  Leave word;
  word.exit_code = failed_code;
  word.reason = "a worker cannot be killed";
  word.failures = failures_;
  leave(std::move(word));
  after_worker_ended();
}

void Agent::join() {
  phase_ = Phase::joining;
  deadline_.reset();
  rejoin_wanted_ = false;
  Join join;
  join.node = identity_.node;
  join.host = identity_.host;
  join.addresses = identity_.addresses;
  join.local_world_size = config_.local_world_size;
  join.role = config_.role;
  join.group_rank = config_.rendezvous.group_rank;
  join.terms = config_.terms;
  join.facts = identity_.facts;
  act(Send{std::move(join)});
}

void Agent::stop(int signal_number, std::string reason) {
  switch (phase_) {
    case Phase::running:
      phase_ = Phase::stopping;
      deadline_ = now_ + config_.stop_grace;
      stop_signal_ = signal_number;
      if (any_alive()) act(SignalWorkers{signal_number, true, std::move(reason)});
      after_worker_ended();
      return;
    case Phase::stopping:
      // The user's own signal reaches workers that were already asked to stop for another reason; none twice.
      if (signal_number == stop_signal_ || (signal_number == SIGTERM && stop_signal_ != 0)) return;
      if (stop_signal_ == 0) deadline_ = now_ + config_.stop_grace;
      stop_signal_ = signal_number;
      act(SignalWorkers{signal_number, true, std::move(reason)});
      return;
    case Phase::joining:
    case Phase::pausing:
      phase_ = Phase::idle;
      deadline_.reset();
      if (leaving_ && !verdict_) deadline_ = now_ + last_word_wait;
      settle();
      return;
    case Phase::idle:
      settle();
      return;
    case Phase::sweeping:
    case Phase::finished:
      return;
  }
}

void Agent::kill(std::string reason) {
  if (phase_ != Phase::stopping && phase_ != Phase::sweeping) return;
  killed_ = true;
  if (phase_ == Phase::sweeping) {
    act(SweepDescendants{Duration{0}});
    return;
  }
  act(KillWorkers{std::move(reason)});
  deadline_ = now_ + unkillable_after;
}

void Agent::leave(Leave word) {
  if (leaving_) return;
  leaving_ = std::move(word);
  act(Send{*leaving_});
}

/// A worker has saved its state and wants the job to be started again later: no failure, and no restart now.
void Agent::requeue(LocalRank local_rank) {
  if (phase_ != Phase::running || leaving_) return;
  const int rank = placement_->first_rank.value() + local_rank.value();
  std::string reason =
      "rank " + std::to_string(rank) + " has saved its state and asks to be started again (exit code 75)";
  say(Say::Level::info, reason);
  // Ranks agree on the step after which they save and stop. The others are about to: a signal now would cut them off.
  Leave word;
  word.exit_code = requeue_code;
  word.reason = reason;
  word.stop_signal = 0;
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
  deadline_ = now_ + config_.stop_grace;
  after_worker_ended();
}

void Agent::note_failure(const WorkerEnded& how, bool may_restart) {
  WorkerFailure failure;
  failure.rank = Rank{placement_->first_rank.value() + how.local_rank.value()};
  failure.local_rank = how.local_rank;
  failure.exit_code = how.exit_code;
  failure.pid = workers_.at(static_cast<std::size_t>(how.local_rank.value())).pid;
  failure.host = identity_.host;
  failure.time_us = how.time_us;
  failure.message = how.message;
  failure.error_file = how.error_file;
  failures_.push_back(std::move(failure));
  if (phase_ != Phase::running) return;  // it ended because we stopped it
  failure_reported_ = true;
  say(Say::Level::error,
      "failed (exitcode: " + std::to_string(how.exit_code) + ") local_rank: " + std::to_string(how.local_rank.value()) +
          " (pid: " + std::to_string(failures_.back().pid) + ") of binary: " + config_.program.executable);
  act(Send{WorkersFailed{placement_->round, failures_, may_restart}});
  stop(SIGTERM, "rank " + std::to_string(failures_.front().rank.value()) + " failed");
}

void Agent::after_worker_ended() {
  if (phase_ != Phase::running && phase_ != Phase::stopping) return;
  if (any_alive()) return;
  if (phase_ == Phase::running) act(Send{WorkersSucceeded{placement_->round}});
  sweep();
}

void Agent::sweep() {
  Duration grace = config_.stop_grace;
  if (phase_ == Phase::stopping) grace = deadline_ && !killed_ ? std::max(Duration{0}, *deadline_ - now_) : Duration{0};
  phase_ = Phase::sweeping;
  deadline_.reset();
  act(SweepDescendants{grace});
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

/// Nothing of ours lives: ends with the verdict, or joins the next round.
void Agent::settle() {
  if (phase_ != Phase::idle) return;
  if (verdict_) {
    phase_ = Phase::finished;
    order_failures();
    act(Finish{*verdict_, failures_});
    return;
  }
  if (!rejoin_wanted_ || leaving_) return;
  const RestartBackoff& backoff = config_.restart_backoff;
  if (backoff.least > Duration{0} && failure_reported_) {
    const bool short_lived = now_ - attempt_begin_ < long_attempt;
    next_pause_ =
        short_lived ? std::clamp(next_pause_ * 2, backoff.least, std::max(backoff.least, backoff.most)) : backoff.least;
    phase_ = Phase::pausing;
    deadline_ = now_ + next_pause_;
    return;
  }
  join();
}

void Agent::say(Say::Level level, std::string text) { act(Say{level, std::move(text)}); }

bool Agent::any_alive() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.state == WorkerState::starting || worker.state == WorkerState::running;
  });
}

}  // namespace torchup
