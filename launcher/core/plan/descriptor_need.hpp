#pragma once

#include <cstdint>
#include <string>

#include "launcher/core/options/launch_config.hpp"

/// How many descriptors an agent needs, against what it may have.
namespace torchup {

/// Those of the agent itself: loop, link, files, reserve.
inline constexpr std::uint64_t agent_descriptors = 32;
/// For each worker: its process, its page, a pipe or pty for each stream, and, while it is started, their other ends.
inline constexpr std::uint64_t worker_descriptors = 6;
/// With --preload, for each worker: its channel, and the channel and process of the parked one that may follow it.
inline constexpr std::uint64_t preload_descriptors = 3;
/// For each worker of the job, on the node that holds the workers' store: its connections there.
inline constexpr std::uint64_t store_descriptors = 2;

/// Why these workers cannot be started with `limit` descriptors, and the remedy; empty where they can. The store is
/// counted where this node must hold it: with one node.
///
/// Source: fault model D3.
[[nodiscard]] std::string descriptors_lacking(const LaunchConfig& plan, std::uint64_t limit);

}  // namespace torchup
