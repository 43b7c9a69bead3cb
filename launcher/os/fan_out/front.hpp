#pragma once

#include <string>

#include "launcher/core/plan/plan_fan_out.hpp"
#include "launcher/os/worker/guardian.hpp"

namespace torchup {

/// The front of a fan-out, in the inner process of the two: starts a command for each host (core/fan_out decides which
/// and when), hosts the coordinator that agents reach over their links, shows what they write, and returns the job's
/// exit code. Nothing listens here. However this process ends, its commands do too, and with them the agents.
[[nodiscard]] int run_front(const FrontPlan& plan, Guarded guarded, const std::string& host);

}  // namespace torchup
