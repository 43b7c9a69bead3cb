#pragma once

#include <functional>

#include "rendezvous/core/link/coordinator_link.hpp"

namespace torchup {

/// An agent's connection to its coordinator: over a socket, or inside one process. Both behave alike, so the agent
/// machine does not know which it has. Lives on one loop; `send` and the handler run on that loop's thread.
///
/// The handler is called from the loop, never from within `send`. Reconnection, keep-alives, fencing and queueing are
/// the link's own work: when the way to the coordinator was cut for too long, the handler gets StopWorkers with
/// StopCause::fenced, and the Join that follows makes this node a new one. Destroying the link closes it; no handler
/// call follows.
class AgentLink {
 public:
  using Handler = std::function<void(LinkEvent)>;

  AgentLink() = default;
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;
  virtual ~AgentLink() = default;

  /// Whether torchrun's agents decide, at a store of theirs: they end all workers before each round.
  [[nodiscard]] virtual bool is_foreign() const { return false; }
  virtual void send(AgentMessage message) = 0;

  /// To be called before the process exits, after End or LinkLost: lets go of the coordinator in good order, then calls
  /// `done` from the loop. Where this process hosts the coordinator that takes until all other agents have the verdict,
  /// or `linger` is over.
  virtual void finish(Duration linger, std::function<void()> done) = 0;
};

}  // namespace torchup
