#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/core/options/launch_config.hpp"
#include "launcher/core/plan/fork_request.hpp"
#include "launcher/os/worker/child_process.hpp"

namespace torchup {

/// The template process of --preload, as launcher/python/injected/template.py wants to be started: without streams and
/// limits. `environment` is common to all workers.
[[nodiscard]] ChildRequest template_request(const WorkerProgram& program, const std::vector<std::string>& modules,
                                            const std::vector<std::string>& environment);

/// What exec would give this child, for the process with this channel that is to become it.
[[nodiscard]] ForkRequest fork_request(const ChildRequest& child, const WorkerChannelAddress& channel, bool module);

}  // namespace torchup
