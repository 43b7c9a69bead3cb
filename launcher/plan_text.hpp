#pragma once

#include <string>

#include "launcher/core/launch_config.hpp"

namespace torchup {

/// The plan for people, as --dry-run prints it: names and values a line each, the environment by its variables that the
/// contract names.
[[nodiscard]] std::string plan_text(const LaunchConfig& plan);

}  // namespace torchup
