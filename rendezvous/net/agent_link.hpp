#pragma once

#include <functional>
#include <string>
#include <variant>

#include "rendezvous/core/messages.hpp"

namespace torchup {

/// The way to the coordinator is gone for good: the endpoint was not reached, or it refused us.
struct LinkLost {
  int exit_code = 0;        ///< README, "Exit codes": 66, 67 or 68
  std::string reason = {};  ///< one line for people: what was tried, why it failed, what to do
  friend bool operator==(const LinkLost&, const LinkLost&) = default;
};

using LinkEvent = std::variant<CoordinatorMessage, LinkLost>;

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

  virtual void send(AgentMessage message) = 0;

  /// To be called before the process exits, after End or LinkLost: lets go of the coordinator in good order, then calls
  /// `done` from the loop. Where this process hosts the coordinator that takes until all other agents have the verdict,
  /// or `linger` is over.
  virtual void finish(Duration linger, std::function<void()> done) = 0;
};

}  // namespace torchup
