#pragma once

#include <span>
#include <string>

#include "launcher/core/options/launch_config.hpp"
#include "launcher/os/worker/guardian.hpp"

/// --rehearse-nodes: nodes on one machine, without root. A starter runs agents (this program, the same command line),
/// which meet on a free port of 127.0.0.1, shows their lines with their names in front, and starts those again that a
/// fault has ended. Which of them, and how it all came out, is decided in core/rehearsal/rehearsed_nodes.
namespace torchup {

/// The starter's whole life, in the inner process of the two: returns the exit code of the rehearsal. `words`: its
/// command line; `token`: of the job, where a variable gave it; `host`: for the record. Signals go on to all agents,
/// who end with us however we end.
[[nodiscard]] int run_rehearsed_nodes(const LaunchConfig& plan, const Guarded& guarded,
                                      std::span<const std::string> words, const std::string& token,
                                      const std::string& host);

}  // namespace torchup
