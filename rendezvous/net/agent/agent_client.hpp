#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/net/coordinator/agent_link.hpp"
#include "rendezvous/net/io/lasting_clock.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

struct AgentClientSettings {
  Endpoint endpoint = {};  ///< resolved anew, off the loop, on each attempt; all its addresses are tried
  /// An open connection to the coordinator, which the link owns from now on: nothing is dialled, before or after its
  /// end. -1: there is none.
  int connection = -1;
  RunId run_id{""};
  std::vector<Endpoint> endpoints = {};  ///< CoordinatorLinkSettings::endpoints
  std::string known_as = {};             ///< CoordinatorLinkSettings::known_as
  std::vector<Port> further_ports = {};               ///< CoordinatorLinkSettings::further_ports
  std::string token = {};                             ///< empty: none
  Duration join_timeout = std::chrono::seconds{600};  ///< how long the endpoint may stay out of reach
  TimePoint since = lasting_now();                    ///< from when on that counts, at the beginning
  /// While this machine is suspended the others' leases run out, and so must ours.
  LastingClock clock = lasting_now;
  /// Called from the loop when who listens there does not answer as a coordinator, and none ever did.
  std::function<void()> on_foreign = {};
  /// Called from the loop when nobody listens there, and no coordinator ever answered.
  std::function<void()> on_refused = {};
  // For who may become a coordinator itself: link::Attends, Doubts and SawEnd. Called from the loop.
  std::function<void(std::int64_t term)> on_attends = {};
  std::function<void()> on_doubts = {};
  std::function<void(std::int64_t term)> on_saw_end = {};
};

/// A link that is told where the coordinator is (CoordinatorLinkSettings::directed).
class DirectedLink : public AgentLink {
 public:
  virtual void direct(std::int64_t term, std::vector<Endpoint> endpoints) = 0;
  virtual void undirected(std::string why, int exit_code) = 0;
  virtual void ended(Verdict verdict) = 0;
};
[[nodiscard]] std::unique_ptr<DirectedLink> connect_directed(boost::asio::io_context& loop,
                                                             AgentClientSettings settings, AgentLink::Handler handler);

/// A link to a coordinator in another process: the sockets and the clock of a CoordinatorLink (core/coordinator_link),
/// which decides.
[[nodiscard]] std::unique_ptr<AgentLink> connect_agent(boost::asio::io_context& loop, AgentClientSettings settings,
                                                       AgentLink::Handler handler);

}  // namespace torchup
