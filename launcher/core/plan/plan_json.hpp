#pragma once

#include <string>

#include "launcher/core/options/launch_config.hpp"

namespace torchup {

/// What a scheduler may have told of the plan, as `--dry-run --format=json` prints it: one object, in it `scheduler`
/// (its name, or null), and `nodes` (as in --nnodes), `workers`, `node_rank`, `hosts`, `endpoint`, `run_id`,
/// `shutdown_timeout` (seconds) and `deadline` (Unix seconds), each with its `value` and `from`: an option, a variable
/// or `default`. `endpoint` may have `also`, further ones in their order. What there is none of is absent.
[[nodiscard]] std::string plan_as_json(const LaunchConfig& plan);

/// "2" or "2:4": the nodes as in --nnodes.
[[nodiscard]] std::string nodes_text(const JobTerms& terms);

}  // namespace torchup
