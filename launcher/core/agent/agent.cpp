#include "launcher/core/agent/agent.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "launcher/core/record/exit_report.hpp"
#include "launcher/core/text/signals.hpp"
#include "rendezvous/core/text/names.hpp"

namespace torchup {
namespace {

/// How long a leaving agent waits for the coordinator's last word.
constexpr Duration last_word_wait = std::chrono::seconds{2};
/// Attempts that lived so long do not count as failing again and again.
constexpr Duration long_attempt = std::chrono::seconds{10};

/// The machine has no more of it for anybody: threads, descriptors, memory.
bool is_shortage(const boost::system::error_code& code) {
  namespace errc = boost::system::errc;
  return code == errc::resource_unavailable_try_again || code == errc::too_many_files_open ||
         code == errc::too_many_files_open_in_system || code == errc::no_buffer_space ||
         code == errc::not_enough_memory;
}

}  // namespace

Agent::Agent(const LaunchConfig& config, AgentIdentity identity)
    : config_{config}, identity_{std::move(identity)}, workers_(static_cast<std::size_t>(config.local_world_size)),
      state_watch_{config.role, config.stuck_timeout}, step_tally_{config.local_world_size} {
  const auto& [script, nodes, node] = config.rehearsal;
  if (script) rehearsal_.emplace(*script, node ? node->start : std::nullopt);
  if (const auto& stop = config.stop_before) {
    stop_time_.emplace(stop->lead, config.stop_grace, !stop->squeue.empty(), stop->untold);
  }
}

std::vector<AgentAction> Agent::step(const AgentEvent& event, TimePoint now) {
  now_ = now;
  if (phase_ != Phase::finished) std::visit([this](const auto& what) { on(what); }, event);
  if (phase_ != Phase::finished) due();
  return std::exchange(actions_, {});
}

std::optional<TimePoint> Agent::deadline() const {
  if (phase_ == Phase::finished) return std::nullopt;
  std::optional<TimePoint> first = deadline_;
  const auto also = [&first](const std::optional<TimePoint>& time) {
    if (time) first = first ? std::min(*first, *time) : *time;
  };
  if (!leaving_ && !verdict_) also(job_end_);
  if (!leaving_ && !verdict_) also(decline_at_);
  if (!leaving_ && !verdict_ && stop_time_) also(stop_time_->deadline());
  for (const Held& held : held_) also(held.until);
  also(drain_insists_);
  also(cause_ends_);
  also(abort_ends_);
  also(hung_ends_);
  also(look_again_at_);
  if (const auto next = next_blame()) also(next->at);
  also(diagnosis_deadline());
  if (rehearsal_) also(rehearsal_->deadline());
  return first;
}

void Agent::on(const Begin&) {
  if (config_.timeout > Duration{0}) job_end_ = now_ + config_.timeout;
  if (config_.gives_up.empty()) return prepare();
  record(event::Fault{config_.gives_up});
  join();
}

void Agent::on(const FromCoordinator& event) {
  foreign_ = event.foreign;
  if (!config_.gives_up.empty() && !std::holds_alternative<End>(event.message)) return decline(event.message);
  std::visit([this](const auto& message) { obey(message); }, event.message);
}

void Agent::on(const StoreOpened& event) { act(Send{StoreReady{event.round, event.port, event.key}}); }

void Agent::on(const StoreFailed& event) {
  Leave word;
  word.exit_code = is_shortage(event.error.code) ? exit_code::unfit : exit_code::unreachable;
  const std::string reason = event.error.message();
  word.reason = fmt::format("no worker store for round {}: {}", event.round.value(), reason);
  leave(std::move(word));
  stop(SIGTERM, reason);
}

void Agent::on(const DescendantsGone&) {
  if (phase_ != Phase::sweeping) return;
  tell_progress(true);
  if (!std::exchange(end_told_, true)) {
    record(event::AttemptEnded{attempt_reason_.empty() ? "all workers succeeded" : attempt_reason_});
  }
  phase_ = Phase::idle;
  deadline_.reset();
  if (leaving_ && !verdict_) deadline_ = now_ + last_word_wait;
  settle();
}

void Agent::obey(const HostStore& message) {
  if (leaving_) return;
  act(OpenStore{message.round, message.sources});
}

void Agent::obey(const Placed& message) {
  if (phase_ != Phase::joining || leaving_ || verdict_) return;
  look_again_at_.reset();
  if (is_to_compare(message.placement)) return compare(message);
  const std::vector<LocalRank> kept = parked();
  if (kept != in_state(WorkerState::running)) {  // one has left its parking place, and was killed
    place_to_come_ = message;
    if (!deadline_) deadline_ = now_ + unkillable_after;  // however often the rounds change meanwhile
    return;
  }
  deadline_.reset();
  const bool restart = !placement_ || placement_->restart_count != message.placement.restart_count;
  changes_since_restart_ = restart ? 0 : changes_since_restart_ + 1;
  placement_ = message.placement;
  failures_.clear();
  failure_reported_ = false;
  killed_ = false;
  attempt_begin_ = now_;
  phase_ = Phase::running;
  attempt_reason_.clear();
  stop_signal_ = 0;
  drain_insists_.reset();
  cause_ends_.reset();
  abort_ends_.reset();
  hung_ends_.reset();
  step_tally_.begin(placement_->first_rank, kept, now_);
  begin_diagnosis(message.watched);
  another_round_ = end_told_ = any_raised_ = false;
  for (Worker& worker : workers_) {
    if (worker.state == WorkerState::running) {
      take_along(worker);
      continue;
    }
    worker = {};
    worker.state = WorkerState::starting;
    if (paused_) worker.pending.push_back(SIGSTOP);
  }
  act(StartWorkers{*placement_, attempt_name(placement_->restart_count, changes_since_restart_, placement_->round),
                   kept});
  rehearse_round();
}

void Agent::obey(const End& message) {
  verdict_ = message.verdict;
  rejoin_wanted_ = false;
  rehearse(rehearsal::JobEnds{});
  if (message.verdict.exit_code == 0) end_well();
  if (message.verdict.save) {
    save_and_stop(message.verdict.reason);
  } else if (message.verdict.stop_signal == 0) {
    if (message.verdict.time_ends && stop_time_ && stop_time_->heed_stop(now_)) ask_to_save();
    wait_for_own_end(message.verdict.reason);
  } else {
    stop(message.verdict.stop_signal, message.verdict.reason);
  }
  if (message.verdict.kill_now) kill(message.verdict.reason);
}

void Agent::obey(const Waiting& message) {
  if (message.roster == last_roster_) return;
  if (phase_ == Phase::running) rehearse(rehearsal::TroubleSeen{});
  last_roster_ = message.roster;
  record(event::Waiting{message.roster, message.of_link});
}

/// Whatever time alone brings.
void Agent::due() {
  if (job_end_ && now_ >= *job_end_ && !leaving_ && !verdict_) {
    end_job(failed_code, "the job ran longer than --timeout allows");
    return;
  }
  if (decline_at_ && now_ >= *decline_at_) end_job(config_.gives_up_code, config_.gives_up);
  stop_time_due();
  forward_due();
  if (drain_insists_ && now_ >= *drain_insists_) {
    drain_insists_.reset();
    if (awaits_saving()) act(DrainWorkers{drained_by_.back(), true});
  }
  if (cause_ends_ && now_ >= *cause_ends_) tell_failures();
  if (abort_ends_ && now_ >= *abort_ends_) {
    abort_ends_.reset();
    hung_ends_ = now_ + unkillable_after;
    kill(KillWorkers{hung()}, SIGABRT, "it hangs, and SIGABRT did not end it");
  }
  if (hung_ends_ && now_ >= *hung_ends_) {
    hung_ends_.reset();
    if (const auto stays = hung(); phase_ == Phase::running && !stays.empty()) {
      end_job(failed_code,
              fmt::format("rank {} hangs, and not even SIGKILL ends it", id_of(stays.front()).rank.value()));
      return;
    }
  }
  blame();
  diagnosis_due();
  rehearse(rehearsal::Wake{});
  if (look_again_at_ && now_ >= *look_again_at_) prepare();
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
  } else if (phase_ == Phase::joining && parked() != in_state(WorkerState::running)) {
    place_to_come_.reset();
    abandon();
    stop(SIGTERM, "a worker of the round before cannot be killed");
  } else if (phase_ == Phase::comparing) {
    comparison_due();
  } else if (phase_ == Phase::pausing) {
    prepare();
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

void Agent::join() {
  if (phase_ == Phase::comparing) {
    act(CancelChecks{});
    deadline_.reset();
  }
  phase_ = Phase::joining;
  forget_progress();
  if (!unfit_.empty()) look_again_at_ = now_ + unfit_look_interval;
  rejoin_wanted_ = false;
  place_to_come_.reset();
  if (!restart_reason_.empty()) {
    event::Restarting restarting;
    restarting.restarts_left = std::max(config_.terms.max_restarts - placement_->restart_count - 1, 0);
    restarting.reason = std::exchange(restart_reason_, "");
    restarting.restart = placement_->restart_count + 1;
    restarting.kept = static_cast<int>(parked().size());
    restarting.workers = config_.local_world_size;
    record(std::move(restarting));
  }
  Join join;
  join.node = identity_.node;
  join.host = identity_.host;
  join.addresses = identity_.addresses;
  join.local_world_size = config_.local_world_size;
  join.role = as_name(config_.role);  // as it comes over the wire: who hosts the coordinator hands his over uncut
  join.group_rank = config_.rendezvous.group_rank;
  join.terms = config_.terms;
  join.facts = identity_.facts;
  join.needed = !config_.gives_up.empty();
  join.needed_code = config_.gives_up_code;
  join.unfit = join.needed ? config_.gives_up : unfit_;
  act(Send{std::move(join)});
}

void Agent::stop(int signal_number, std::string reason) {
  switch (phase_) {
    case Phase::running:
      phase_ = Phase::stopping;
      deadline_ = now_ + stop_grace();
      drain_insists_.reset();
      cause_ends_.reset();
      attempt_reason_ = reason;
      rehearse_end_of_round(false);
      record(event::Stopping{std::move(reason)});
      signal_to_end(signal_number);
      after_worker_ended();
      return;
    case Phase::stopping: {
      const std::vector<LocalRank> let_gone = round_follows() ? std::vector<LocalRank>{} : let_go();
      // The user's own signal reaches workers that were already asked to stop for another reason; none twice.
      if (killed_ || signal_number == stop_signal_ || (signal_number == SIGTERM && stop_signal_ != 0)) {
        if (!let_gone.empty()) end_kept(let_gone);
        return;
      }
      if (stop_signal_ == 0) deadline_ = now_ + stop_grace();
      signal_to_end(signal_number);
      after_worker_ended();
      return;
    }
    case Phase::checking:
    case Phase::comparing:
      act(CancelChecks{});
      [[fallthrough]];
    case Phase::joining:
    case Phase::pausing:
      phase_ = Phase::idle;
      deadline_.reset();
      look_again_at_.reset();
      if (leaving_ && !verdict_) deadline_ = now_ + last_word_wait;
      settle();
      return;
    case Phase::idle:
      if (leaving_ && !verdict_ && !deadline_) deadline_ = now_ + last_word_wait;
      settle();
      return;
    case Phase::sweeping:
    case Phase::finished:
      return;
  }
}

void Agent::leave(Leave word) {
  if (leaving_) return;
  leaving_ = std::move(word);
  act(Send{*leaving_});
  rehearse(rehearsal::JobEnds{});
}

void Agent::after_worker_ended() {
  if (phase_ != Phase::running && phase_ != Phase::stopping) return;
  if (any_busy()) return;
  if (cause_ends_) return cause_may_come() ? void() : tell_failures();
  if (phase_ == Phase::running) act(Send{WorkersSucceeded{placement_->round}});
  sweep();
}

void Agent::sweep() {
  // Workers that ended by themselves may have left somebody behind who tidies up after them (torch_shm_manager).
  rehearse_end_of_round(!killed_ && stop_signal_ == 0 && in_state(WorkerState::failed).empty());
  const bool by_themselves = !killed_ && (phase_ == Phase::running || stop_signal_ == 0);
  Duration grace = config_.stop_grace;
  if (phase_ == Phase::stopping) grace = deadline_ && !killed_ ? std::max(Duration{0}, *deadline_ - now_) : Duration{0};
  phase_ = Phase::sweeping;
  deadline_.reset();
  abort_ends_.reset();
  hung_ends_.reset();
  act(SweepDescendants{by_themselves ? leftover_patience : Duration{0}, grace, parked()});
}

/// Nothing of ours lives: ends with the verdict, or joins the next round.
void Agent::settle() {
  if (phase_ != Phase::idle) return;
  if (!round_follows() && waits_for_kept()) return;
  if (verdict_) {
    phase_ = Phase::finished;
    order_failures();
    const Verdict verdict = own_verdict();
    auto rehearsed = end_of_rehearsal(verdict);
    act(Finish{verdict, failures_, leaving_ && !leaving_->ends_job, std::move(rehearsed)});
    return;
  }
  if (!rejoin_wanted_ || leaving_) return;
  if (!drained_by_.empty()) {
    end_job(requeue_code,
            fmt::format("got {}, and the attempt ended before its state was saved", signal_text(drained_by_.front())));
    return;
  }
  const RestartBackoff& backoff = config_.restart_backoff;
  if (backoff.least > Duration{0} && failure_reported_) {
    const bool short_lived = now_ - attempt_begin_ < long_attempt;
    next_pause_ =
        short_lived ? std::clamp(next_pause_ * 2, backoff.least, std::max(backoff.least, backoff.most)) : backoff.least;
    phase_ = Phase::pausing;
    deadline_ = now_ + next_pause_;
    return;
  }
  prepare();
}

}  // namespace torchup
