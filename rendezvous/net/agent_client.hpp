#pragma once

#include <functional>
#include <memory>
#include <string>

#include "rendezvous/core/endpoint.hpp"
#include "rendezvous/net/agent_link.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

struct AgentClientSettings {
  Endpoint endpoint = {};  ///< resolved anew, off the loop, on each attempt; all its addresses are tried
  RunId run_id{""};
  std::string token = {};                             ///< empty: none
  Duration join_timeout = std::chrono::seconds{600};  ///< how long the endpoint may stay out of reach
  /// Called from the loop when who listens there does not answer as a coordinator, and none ever did.
  std::function<void()> on_foreign = {};
  /// Called from the loop when nobody listens there, and no coordinator ever answered.
  std::function<void()> on_refused = {};
};

/// A link to a coordinator in another process.
///
/// Reconnects after a cut and restates where this agent stands, so that it keeps its place while its workers live.
/// Sends a keep-alive every min(1 s, lease / 5). Fences (StopWorkers with StopCause::fenced) at 0.9 of the lease after
/// the sending of the last keep-alive that was answered, by this machine's own clock; then joins as a new node.
[[nodiscard]] std::unique_ptr<AgentLink> connect_agent(boost::asio::io_context& loop, AgentClientSettings settings,
                                                       AgentLink::Handler handler);

}  // namespace torchup
