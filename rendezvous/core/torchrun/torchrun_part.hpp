#pragma once

#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/torchrun/torchrun_store.hpp"

namespace torchup {

/// How often the store is looked at while something is awaited from others, and otherwise.
inline constexpr Duration busy_pace = std::chrono::milliseconds{100};
inline constexpr Duration quiet_pace = std::chrono::milliseconds{250};
/// How long nodes wait for each other at the end. Source: torchrun's exit_barrier_timeout.
inline constexpr Duration barrier_limit = std::chrono::seconds{300};

/// The part of a torchrun agent, played for one of ours: in an elastic rendezvous (TorchrunPeer) or a static one
/// (TorchrunStatic). The agent speaks to it as to a coordinator and is answered so.
class TorchrunPart {
 public:
  TorchrunPart() = default;
  TorchrunPart(const TorchrunPart&) = delete;
  TorchrunPart& operator=(const TorchrunPart&) = delete;
  virtual ~TorchrunPart() = default;

  /// What the agent says, to be followed by a turn.
  virtual void said(const AgentMessage& message, TimePoint now) = 0;

  /// Looks at the store and does what is due. What the agent is told. After End nothing follows.
  [[nodiscard]] virtual Result<std::vector<CoordinatorMessage>> turn(TorchrunStore& store, TimePoint now,
                                                                     UtcTime utc) = 0;
  /// How soon the next turn should be.
  [[nodiscard]] virtual Duration pace() const = 0;

  /// The store has gone: its host has ended. True when that is how a job ends that has succeeded.
  [[nodiscard]] virtual bool finished_without_store() const = 0;
  [[nodiscard]] virtual bool over() const = 0;

  /// The round that the agent was placed in last, or is about to be.
  [[nodiscard]] virtual Round round() const = 0;
};

}  // namespace torchup
