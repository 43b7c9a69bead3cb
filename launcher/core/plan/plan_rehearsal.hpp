#pragma once

#include <optional>

#include "launcher/core/options/launch_config.hpp"
#include "launcher/core/options/option_values.hpp"
#include "launcher/core/rehearsal/rehearsal_report.hpp"

namespace torchup {

/// The options as --rehearse-nodes means them, for its starter and for the agents, which get its command line: the
/// nodes meet where the starter says, and are as many as are started, unless --nnodes says otherwise. Each `node` has
/// its own log folder and result file. Without the option they are as they were.
[[nodiscard]] OptionValues in_rehearsed_nodes(const OptionValues& options, const std::optional<RehearsedNode>& node);

/// Whether a signal to the starter of --rehearse-nodes ends the job. It goes on to all agents, who do with it what
/// agents do; those that end a job do so one by one, and meanwhile none is to be started.
[[nodiscard]] bool ends_all_nodes(const LaunchConfig& plan, int signal);

}  // namespace torchup
