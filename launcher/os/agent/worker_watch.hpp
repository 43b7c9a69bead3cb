#pragma once

#include <boost/asio/steady_timer.hpp>
#include <functional>

#include "launcher/core/agent/agent.hpp"
#include "launcher/os/agent/worker_group.hpp"
#include "rendezvous/net/io/asio.hpp"

namespace torchup {

/// Looks at the living workers again and again, at their pages and at what the kernel says of them, and hands what it
/// sees to the agent machine, which knows what it means. Lives on the loop.
class WorkerWatch {
 public:
  using Handler = std::function<void(AgentEvent)>;
  WorkerWatch(asio::io_context& loop, const WorkerGroup& workers, Duration step_interval, Duration state_interval,
              Handler handler);

  void start();

 private:
  void watch_steps();
  void watch_states();

  const WorkerGroup& workers_;
  const Duration step_interval_;
  const Duration state_interval_;
  Handler handler_;
  asio::steady_timer step_timer_;
  asio::steady_timer state_timer_;
};

}  // namespace torchup
