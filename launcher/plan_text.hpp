#pragma once

#include <string>

#include "launcher/core/options/launch_config.hpp"

namespace torchup {

/// The plan for people, as --dry-run prints it: names and values a line each, the environment by its variables that the
/// contract names.
[[nodiscard]] std::string plan_text(const LaunchConfig& plan);

/// Variables as `export NAME='value'` lines, and as one JSON object.
[[nodiscard]] std::string variables_as_shell(const Variables& variables);
[[nodiscard]] std::string variables_as_json(const Variables& variables);

}  // namespace torchup
