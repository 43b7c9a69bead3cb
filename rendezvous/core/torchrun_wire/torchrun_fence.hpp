#pragma once

#include <optional>
#include <string>

#include "rendezvous/core/link/messages.hpp"

namespace torchup {

/// When an agent of ours in torchrun's rendezvous must stop its workers because the store does not answer: the others
/// take it for dead, and form a round without it. Independent of the thread that waits for the store, whose calls may
/// block for longer than the lease.
///
/// Workers are stopped at nine tenths of the lease, counted from the sending of the last question that was answered.
class TorchrunFence {
 public:
  /// `rendezvous`: for people.
  explicit TorchrunFence(std::string rendezvous) : rendezvous_{std::move(rendezvous)} {}

  void said(const AgentMessage& message);
  void told(const CoordinatorMessage& message);
  void answered(TimePoint asked_at) { asked_at_ = asked_at; }

  /// When to ask again whether workers must be stopped; empty: while none run.
  [[nodiscard]] std::optional<TimePoint> deadline() const;
  /// What the agent is to be told now; once for each round.
  [[nodiscard]] std::optional<StopWorkers> due(TimePoint now);

 private:
  std::string rendezvous_;
  Duration lease_ = JobTerms{}.lease;
  TimePoint asked_at_{};
  std::optional<Round> runs_;
};

}  // namespace torchup
