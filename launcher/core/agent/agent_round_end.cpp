#include <algorithm>
#include <csignal>
#include <utility>
#include <variant>

#include "launcher/core/agent/agent.hpp"

/// How the coordinator ends a round: at once, or by plan, before which workers save.
namespace torchup {

bool is_planned_stop(const CoordinatorMessage& message) {
  if (const auto* stop = std::get_if<StopWorkers>(&message)) return stop->save;
  const auto* const end = std::get_if<End>(&message);
  return end != nullptr && end->verdict.save;
}

void Agent::obey(const StopWorkers& message) {
  if (verdict_) return;
  if (leaving_ && placement_ && placement_->round == message.round && is_void(*leaving_, message)) leaving_.reset();
  if (leaving_) return;
  if (phase_ == Phase::checking) return;                                      // its Join is still to come
  if (phase_ == Phase::joining || phase_ == Phase::comparing) return join();  // no worker was started
  if (placement_->round != message.round) return;
  rejoin_wanted_ = true;
  another_round_ = message.cause != StopCause::fenced && !message.stands_by;
  if (message.cause == StopCause::worker_failure) restart_reason_ = message.reason;
  if (message.cause == StopCause::membership_change) record(event::MembershipChanged{message.reason});
  if (message.save) return save_and_stop(message.reason);
  if (message.cause != StopCause::fenced) return stop(SIGTERM, message.reason);
  // Others may have its workers' places already: they get no word that they could act upon.
  if (phase_ == Phase::running) {
    wait_for_own_end(message.reason);
  } else if (phase_ != Phase::stopping && phase_ != Phase::sweeping) {
    stop(SIGTERM, message.reason);
  }
  kill(message.reason);
  tell_place(false);
}

/// A planned stop, on all nodes at once: workers that end steps save their state after the next one, together, and end.
void Agent::save_and_stop(std::string reason) {
  if (phase_ == Phase::stopping && stop_signal_ == 0) return;  // they are about to
  if (!can_save_together()) return stop(SIGTERM, std::move(reason));
  act(DrainWorkers{config_.drain_signals.empty() ? 0 : config_.drain_signals.front(), false});
  wait_for_own_end(std::move(reason));
}

/// Those that can outlive the round lose nothing: they are told of its end.
bool Agent::can_save_together() const {
  if (phase_ != Phase::running || !diagnosis_.any_step) return false;
  const std::vector<LocalRank> alive = in_state(WorkerState::running);
  return !round_follows() ||
         !std::ranges::all_of(alive, [this](LocalRank local_rank) { return worker_at(local_rank).stay == Stay::yes; });
}

}  // namespace torchup
