#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/core/options/launch_config.hpp"
#include "launcher/os/worker/child_process.hpp"
#include "rendezvous/base/fork_request.hpp"

namespace torchup {

/// The template process of --preload, as launcher/python/injected/template.py wants to be started, or a native program
/// with the mark (rendezvous/base/template_mark.hpp): without streams and limits. `environment` is common to all
/// workers, but for the hook's folder, which is `hook` (empty: there is none); `control` is its end of the pair to us,
/// but for its pid.
[[nodiscard]] ChildRequest template_request(const WorkerProgram& program, const std::vector<std::string>& modules,
                                            const std::vector<std::string>& environment, const std::string& hook,
                                            const WorkerChannelAddress& control);

/// What exec would give this child, for the process with this channel that is to become it.
[[nodiscard]] ForkRequest fork_request(const ChildRequest& child, const WorkerChannelAddress& channel,
                                       const WorkerProgram& program);

}  // namespace torchup
