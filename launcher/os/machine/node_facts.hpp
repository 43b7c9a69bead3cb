#pragma once

#include <span>
#include <string>
#include <vector>

#include "launcher/core/options/launch_config.hpp"

namespace torchup {

/// What should be the same on all nodes of a job (--same-world): our version, the program's content, and the variables
/// that change how workers compute or talk: OMP_NUM_THREADS and those of NCCL, gloo, CUDA's libraries and torch, less
/// those that name this node's own devices.
///
/// `environment`: NAME=VALUE, as workers inherit it. The program's content is its size and a hash of its first 16 MiB.
/// Every name and value is a name (rendezvous/core/text/names), and there are facts_max at most: a long or odd one ends
/// with its length and a hash, and so do those that are too many.
/// `versions` (os/diagnosis/preflight_facts) stand before the variables.
[[nodiscard]] std::vector<Fact> node_facts(const LaunchConfig& config, std::span<const std::string> environment,
                                           std::vector<Fact> versions = {});

}  // namespace torchup
