#include <algorithm>
#include <csignal>
#include <utility>

#include "launcher/core/agent/agent.hpp"

namespace torchup {

void Agent::on(const EndOfTime& event) {
  if (stop_time_) stop_time_->know(event.end);
}

void Agent::stop_time_due() {
  if (!stop_time_ || leaving_ || verdict_) return;
  switch (stop_time_->due(now_)) {
    case StopTime::Due::nothing:
      return;
    case StopTime::Due::asking:
      return act(AskEndOfTime{});
    case StopTime::Due::stopping:
      return stop_in_time();
  }
}

/// The first node whose time it is speaks for all: the job ends with 75, whatever its workers' codes are then.
void Agent::stop_in_time() {
  if (cause_ends_) tell_failures();
  if (failure_reported_ && !another_round_) return;  // that failure has ended the job
  const bool can_save = phase_ == Phase::running && !in_state(WorkerState::running).empty();
  if (!can_save && phase_ != Phase::running && !restart_under_way()) return;  // here all is done; others speak
  Leave word;
  word.exit_code = requeue_code;
  word.reason = can_save ? "the time of this job ends: its workers were asked to save and stop"
                         : "the time of this job ends, and no worker ran on this node that could save";
  word.stop_signal = 0;
  word.time_ends = true;
  std::string reason = word.reason;
  if (can_save) ask_to_save();
  leave(std::move(word));
  rejoin_wanted_ = false;
  if (can_save) return wait_for_own_end(std::move(reason));
  stop(SIGTERM, std::move(reason));
}

/// Over the page where they report steps, else by a signal; those that are being started, when they are.
void Agent::ask_to_save() {
  stop_time_->stop();
  if (phase_ != Phase::running || !any_alive()) return;
  const int number = config_.stop_before->signal;
  drained_by_.push_back(number);
  drain_insists_ = now_ + drain_patience;
  record(event::TimeEnds{std::chrono::duration<double>{stop_time_->end() - now_}.count()});
  act(DrainWorkers{number, false});
}

/// When workers that were left to end by themselves get SIGTERM.
TimePoint Agent::own_end_limit() const {
  if (!stop_time_ || !stop_time_->is_stopping()) return now_ + config_.stop_grace;
  return std::max(now_, stop_time_->terminate_at());
}

/// And how long afterwards SIGKILL.
Duration Agent::stop_grace() const {
  if (!stop_time_ || !stop_time_->is_stopping()) return config_.stop_grace;
  return std::clamp(stop_time_->kill_at() - now_, Duration{0}, config_.stop_grace);
}

}  // namespace torchup
