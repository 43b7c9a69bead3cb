#pragma once

#include <sys/types.h>

#include <string>

#include "launcher/core/agent/agent.hpp"
#include "launcher/core/options/launch_config.hpp"
#include "launcher/core/options/output_plan.hpp"
#include "launcher/core/record/launch_event.hpp"
#include "rendezvous/net/agent/attach.hpp"

/// What the parts of an agent take from the plan. `host` is this machine's name.
namespace torchup {

[[nodiscard]] OutputPlan output_plan(const LaunchConfig& config, const std::string& host);
/// With the facts by which nodes are compared, where they are.
[[nodiscard]] AgentIdentity agent_identity(const LaunchConfig& config, const std::string& host);
/// `launcher`: the pid that users see.
[[nodiscard]] event::JobStarted job_started(const LaunchConfig& config, pid_t launcher);
/// Without a log.
[[nodiscard]] AttachSettings attach_settings(const LaunchConfig& config);

}  // namespace torchup
