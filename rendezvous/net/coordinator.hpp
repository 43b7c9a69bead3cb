#pragma once

#include <memory>

#include "rendezvous/net/agent_link.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

/// Brings the agents of many jobs together: one round machine (core/rendezvous) per run id. Lives on one loop, in
/// torchupd or in the agent that hosts the rendezvous. Agents of other processes come through agent_sessions.
class Coordinator {
 public:
  explicit Coordinator(boost::asio::io_context& loop);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;
  ~Coordinator();

  /// A link for the agent of this same process. It is never silent and never fenced; when it leaves, the job ends for
  /// all, because the coordinator goes with it. The coordinator must outlive it.
  [[nodiscard]] std::unique_ptr<AgentLink> connect(RunId run_id, AgentLink::Handler handler);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace torchup
