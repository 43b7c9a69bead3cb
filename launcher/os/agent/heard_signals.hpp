#pragma once

#include <sys/signalfd.h>

#include <functional>

#include "launcher/core/agent/agent_events.hpp"
#include "launcher/os/agent/attempt_sweep.hpp"
#include "launcher/os/agent/job_record.hpp"
#include "launcher/os/agent/worker_group.hpp"
#include "launcher/os/output/worker_output.hpp"
#include "launcher/os/worker/guardian.hpp"

namespace torchup {

/// To whom a signal is news that this process got: to the sweep, to terminals, to who reads our output, else to the
/// agent machine. Lives on the loop.
class HeardSignals {
 public:
  struct Parts {
    AttemptSweep& sweep;
    Output& output;
    WorkerGroup& workers;
    const JobRecord& job;
  };
  HeardSignals(const LaunchConfig& config, const Guarded& guarded, Parts parts, std::function<void(AgentEvent)> tell)
      : config_{config}, guarded_{guarded}, parts_{parts}, tell_{std::move(tell)} {}

  void take(const signalfd_siginfo& info);

 private:
  [[nodiscard]] bool is_end_signal(int number) const;

  const LaunchConfig& config_;
  const Guarded& guarded_;
  const Parts parts_;
  const std::function<void(AgentEvent)> tell_;
};

}  // namespace torchup
