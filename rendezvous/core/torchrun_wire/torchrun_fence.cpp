#include "rendezvous/core/torchrun_wire/torchrun_fence.hpp"

#include <fmt/format.h>

#include <utility>

namespace torchup {

void TorchrunFence::said(const AgentMessage& message) {
  if (const auto* join = std::get_if<Join>(&message)) {
    lease_ = join->terms.lease;
    runs_.reset();
  }
}

void TorchrunFence::told(const CoordinatorMessage& message) {
  if (const auto* placed = std::get_if<Placed>(&message)) runs_ = placed->placement.round;
  if (std::holds_alternative<StopWorkers>(message) || std::holds_alternative<End>(message)) runs_.reset();
}

std::optional<TimePoint> TorchrunFence::deadline() const {
  return runs_ ? std::optional{asked_at_ + lease_ * 9 / 10} : std::nullopt;
}

std::optional<StopWorkers> TorchrunFence::due(TimePoint now) {
  const auto at = deadline();
  if (!at || now < *at) return {};
  return StopWorkers{*std::exchange(runs_, std::nullopt), StopCause::fenced,
                     fmt::format("torchrun's rendezvous at {} is out of reach", rendezvous_)};
}

}  // namespace torchup
