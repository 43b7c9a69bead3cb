#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "launcher/core/agent/agent.hpp"
#include "launcher/core/record/exit_report.hpp"
#include "launcher/core/text/signals.hpp"

namespace torchup {

void Agent::on(const SignalArrived& event) {
  if (event.number == dismissal_signal) return dismissed();
  if (is_copy(event)) {
    const auto same = [&](const Held& held) { return held.number == event.number; };
    if (!event.passed_on && std::erase_if(held_, same) > 0) sent_to_all(event.number);
    return;
  }
  const int number = event.number;
  if (number == SIGTSTP || number == SIGCONT) return pause(number);
  if (is_in(config_.drain_signals, number) && !is_in(drained_by_, number) && !leaving_ && !verdict_) {
    return drain(number);
  }
  const bool drains = is_in(config_.drain_signals, number);
  if (!drains && is_in(config_.forward_signals, number) && !is_in(config_.end_signals, number)) {
    return hold(event);
  }
  end_by_signal(number);
}

bool Agent::is_in(const std::vector<int>& list, int number) { return std::ranges::find(list, number) != list.end(); }

/// One signal to all processes of the job reaches us twice.
bool Agent::is_copy(const SignalArrived& event) {
  const auto known = std::ranges::find(heard_, event.number, &Heard::number);
  if (known == heard_.end()) {
    heard_.push_back({event.number, event.passed_on, now_, false});
    return false;
  }
  const bool other_way = known->passed_on != event.passed_on;
  const Duration later = now_ - known->at;
  if (later <= signal_copy_window || (other_way && !known->copied && later <= signal_other_way_window)) {
    known->copied = known->copied || other_way;
    return true;
  }
  *known = {event.number, event.passed_on, now_, false};
  return false;
}

/// Ctrl-Z and what follows it. SIGTSTP would not reach workers in sessions of their own.
void Agent::pause(int number) {
  // What ends a stop of this node in a rehearsal is nobody's wish.
  if (number == SIGCONT && !paused_ && rehearsal_ && rehearsal_->stops_node(now_)) return;
  if (number == SIGTSTP && rehearsal_) act(ReleaseWorkers{});  // nothing of ours lets them go on before its time
  paused_ = number == SIGTSTP;
  received(number, paused_ ? SignalUse::pauses : SignalUse::resumes, paused_ ? "workers stopped" : "workers resumed");
  signal(in_state(WorkerState::running), paused_ ? SIGSTOP : SIGCONT, false);
  for (Worker& worker : workers_) {
    std::erase(worker.pending, SIGSTOP);
    if (paused_ && worker.state == WorkerState::starting) worker.pending.push_back(SIGSTOP);
  }
}

/// The job is to save and stop. Where no worker runs that could save, what was saved last is all there is.
void Agent::drain(int number) {
  if (phase_ == Phase::running && !in_state(WorkerState::running).empty()) {
    drained_by_.push_back(number);
    drain_insists_ = now_ + drain_patience;
    received(number, SignalUse::drains, "the workers are asked to save and stop (again to end the job)");
    act(DrainWorkers{number, false});
  } else if (restart_under_way() || phase_ == Phase::running) {
    drained_by_.push_back(number);
    received(number, SignalUse::drains, "no worker runs that could save: the job ends, to be started again");
    end_job(requeue_code, fmt::format("got {} while no worker ran", signal_text(number)));
  } else {
    received(number, SignalUse::ignored, "the workers of this node have ended");
  }
}

/// The workers were asked to save and stop. One that has may have ended before the others could hear of it.
bool Agent::awaits_saving() const {
  const bool may_end_alone = phase_ == Phase::stopping && stop_signal_ == 0 && !killed_;
  return !drained_by_.empty() && (phase_ == Phase::running || may_end_alone);
}

/// Workers are to run here again before long, and do not yet.
bool Agent::restart_under_way() const {
  const bool before_start = phase_ == Phase::checking || phase_ == Phase::joining || phase_ == Phase::comparing;
  return before_start || phase_ == Phase::pausing || rejoin_wanted_ || failure_reported_;
}

/// One that reaches this process itself was sent to all processes of the job, for nobody knows of this one: Slurm does
/// so. The workers have it then.
void Agent::hold(const SignalArrived& event) {
  if (event.passed_on) {
    held_.push_back({event.number, now_ + signal_copy_window});
  } else {
    sent_to_all(event.number);
  }
}

void Agent::sent_to_all(int number) {
  received(number, SignalUse::forwards, "it was sent to all processes, the workers among them");
}

void Agent::forward_due() {
  for (const Held& held : std::exchange(held_, {})) {
    if (now_ < held.until) {
      held_.push_back(held);
    } else {
      forward(held.number);
    }
  }
}

void Agent::forward(int number) {
  received(number, SignalUse::forwards, "passed on to the workers");
  signal(in_state(WorkerState::running), number, false);
  for (Worker& worker : workers_) {
    if (worker.state == WorkerState::starting && !is_in(worker.pending, number)) worker.pending.push_back(number);
  }
}

/// The front does without this host; another one may take its place, also in a job of one node. Workers that save the
/// job's state are let: the job ends with that.
void Agent::dismissed() {
  if (!leaving_ && !verdict_ && !awaits_saving()) leave_node("its front does without this host", false);
}

/// As SIGTERM would have it, were it given no other meaning.
void Agent::leave_node(std::string reason, bool ends_job) {
  Leave word;
  word.ends_job = ends_job;
  word.exit_code = shell_code(SIGTERM);
  word.reason = reason;
  leave(std::move(word));
  rejoin_wanted_ = false;
  stop(SIGTERM, std::move(reason));
  if (phase_ == Phase::sweeping) act(SweepDescendants{Duration{0}, config_.stop_grace, parked()});
}

/// What workers get for it: one that was to make them save, and would kill them, is no way to end.
int Agent::stop_number(int number) const { return is_in(config_.drain_signals, number) ? SIGTERM : number; }

void Agent::end_by_signal(int number) {
  if (diagnosis_.quit_ends) {
    quit();  // who sends another one waits for no page
  } else if (number == SIGQUIT && ask_look()) {
    return;
  }
  end_at_once(number);
}

void Agent::end_at_once(int number) {
  const bool typed = number == SIGINT || number == SIGQUIT;
  // Terminals that go away send several of these; nobody sends a second one to say something.
  const bool again = is_in(ended_by_, number) && number != SIGHUP;
  if (!is_in(ended_by_, number)) ended_by_.push_back(number);
  const std::string reason = "got " + signal_text(number);
  if (leaving_) {
    if (phase_ == Phase::stopping && stop_signal_ == 0) {
      // Somebody has no time for workers that are about to end by themselves: from now on it is a stop like any other.
      received(number, SignalUse::ends, "shutting down workers");
      stop(stop_number(number), reason);
    } else if (leaving_->kill_now) {
      received(number, SignalUse::ignored, "the workers are being killed already");
    } else if (typed || again) {
      received(number, SignalUse::forces, "the workers are killed");
      leaving_->kill_now = true;
      act(Send{*leaving_});
      kill("second " + signal_text(number));
    } else {
      const char* const hint = number == SIGHUP ? "" : " (again to kill them)";
      received(number, SignalUse::ignored, fmt::format("the workers are being stopped already{}", hint));
    }
    return;
  }
  const std::string force = number == SIGHUP   ? ""
                            : number == SIGINT ? " (Ctrl-C again to force)"
                                               : fmt::format(" ({} again to force)", signal_text(number));
  received(number, SignalUse::ends, "shutting down workers" + force);
  Leave word;
  // TERM and HUP mean this node; what people type, and what the user listed, means the job.
  word.ends_job = config_.end_signals_listed || typed || config_.one_node() || !is_in(config_.end_signals, number);
  word.exit_code = shell_code(number);
  word.reason = reason;
  word.stop_signal = stop_number(number);
  leave(std::move(word));
  rejoin_wanted_ = false;
  stop(stop_number(number), reason);
  if (phase_ == Phase::sweeping) act(SweepDescendants{Duration{0}, config_.stop_grace, parked()});
}

void Agent::received(int number, SignalUse use, std::string consequence) {
  record(event::SignalReceived{number, use, std::move(consequence)});
}

void Agent::signal_to_end(int number) {
  stop_signal_ = number;
  if (!any_alive()) return;
  act(CancelStarts{});
  signal(tell_of_the_end(), number, true);
}

void Agent::signal(std::vector<LocalRank> workers, int number, bool ends) {
  if (workers.empty()) return;
  if (ends && number == SIGQUIT) act(ShowWorkers{workers, diagnosis_.shown});
  act(SignalWorkers{number, ends, workers});
  if (!ends) return;
  for (const LocalRank local_rank : workers) record(event::ClosingSignalSent{id_of(local_rank), number});
}

void Agent::kill(const std::string& reason) {
  if (phase_ != Phase::stopping && phase_ != Phase::sweeping) return;
  killed_ = true;
  if (phase_ == Phase::sweeping) {
    act(SweepDescendants{});
    return;
  }
  act(CancelStarts{true});
  if (!round_follows()) static_cast<void>(let_go());
  const std::vector<LocalRank> spared = parked();
  KillWorkers action{in_state(WorkerState::running), spared.empty()};
  std::erase_if(action.workers, [&](LocalRank each) { return std::ranges::find(spared, each) != spared.end(); });
  for (const LocalRank local_rank : action.workers) worker_at(local_rank).stay = Stay::no;
  kill(std::move(action), stop_signal_, reason);
  deadline_ = now_ + unkillable_after;
}

void Agent::kill(KillWorkers action, int after_signal, const std::string& reason) {
  if (action.workers.empty()) return;
  act(action);
  for (const LocalRank local_rank : action.workers)
    record(event::WorkerKilled{id_of(local_rank), after_signal, reason});
}

}  // namespace torchup
