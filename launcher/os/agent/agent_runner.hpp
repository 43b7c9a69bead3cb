#pragma once

#include <string>

#include "launcher/core/options/launch_config.hpp"
#include "launcher/os/worker/guardian.hpp"
#include "launcher/os/worker/seats.hpp"

namespace torchup {

/// Runs this node's agent to its end: waits for events, hands them to the agent machine and performs its actions.
/// Ends this process with the launcher's exit code, and those in `seats`; no process that the job started lives then.
[[noreturn]] void run_agent(const LaunchConfig& config, Guarded guarded, const std::string& host, Seats seats);

}  // namespace torchup
