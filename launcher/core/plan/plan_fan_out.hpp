#pragma once

#include <string>
#include <vector>

#include "launcher/core/fan_out/fan_out_options.hpp"
#include "launcher/core/plan/plan.hpp"

namespace torchup {

/// What the front of a fan-out does: its hosts, and the plan that holds for all of them. What only a host can say, its
/// program, GPUs and CPUs, is looked at there.
struct FrontPlan {
  FanOutPlan hosts;
  LaunchConfig job;
};

/// Errors: as read_fan_out and make_plan; fewer hosts than nodes; more than a link can carry.
[[nodiscard]] Result<FrontPlan> plan_fan_out(const OptionValues& options, const std::vector<std::string>& words,
                                             bool legacy, const Machine& machine, const FanOutFacts& facts);

}  // namespace torchup
