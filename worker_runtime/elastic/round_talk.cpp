#include "worker_runtime/elastic/round_talk.hpp"

#include <utility>

namespace torchup {

WorkerWord RoundTalk::leave() {
  over_.reset();
  raised_ = is_cause_ = false;
  return WorkerLeaves{};
}

std::optional<WorkerWord> RoundTalk::raise(std::string text) {
  is_cause_ = false;
  raised_ = is_open_ && !over_;
  if (!raised_) return {};
  return WorkerRaised{std::move(text)};
}

std::optional<RoundTalk::Blame> RoundTalk::blame() const {
  if (over_) return Blame::consequence;
  if (is_cause_ || !is_open_) return Blame::own;
  return {};
}

WorkerWord RoundTalk::park(std::int64_t step) {
  raised_ = is_cause_ = false;
  place_.reset();
  parked_at_ = step;
  return WorkerParked{step};
}

std::optional<RoundTalk::Variables> RoundTalk::take_place() {
  if (place_) parked_at_.reset();
  return std::exchange(place_, std::nullopt);
}

std::optional<WorkerWord> RoundTalk::hear(const AgentWord& word) {
  if (const auto* const over = std::get_if<RoundOver>(&word)) {
    over_ = over->reason.empty() ? "the round is over" : over->reason;
    raised_ = false;
    if (parked_at_ && !place_) return WorkerParked{*parked_at_};  // it was asked again: as before
  } else if (const auto* const place = std::get_if<NewPlace>(&word)) {
    if (!parked_at_) return {};
    place_ = place->variables;
    over_.reset();
  } else if (std::holds_alternative<OwnFault>(word) && raised_) {
    is_cause_ = true;
  }
  return {};
}

}  // namespace torchup
