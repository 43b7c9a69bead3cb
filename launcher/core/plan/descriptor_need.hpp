#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "launcher/core/options/launch_config.hpp"

/// How many descriptors an agent needs, against what it may have.
namespace torchup {

/// Those of the agent itself: loop, link, files, reserve.
inline constexpr std::uint64_t agent_descriptors = 32;
/// For each worker: its process, its page, its channel, and for each stream a pipe or pty and a log file.
inline constexpr std::uint64_t worker_descriptors = 7;
/// So many workers are being started at the same time, and for each of them there are, until it runs, the other ends of
/// its streams and its channel.
inline constexpr int starts_at_once = 8;
inline constexpr std::uint64_t start_descriptors = 4;
/// With --preload, for each worker: the channel and process of the parked one that may follow it.
inline constexpr std::uint64_t preload_descriptors = 2;
/// For each worker of the job, on the node that holds the workers' store: its connections there.
inline constexpr std::uint64_t store_descriptors = 2;

/// For each host of a fan-out: its command's process and streams, and both ends of its agent's connection. That of a
/// host whose command is being ended is another's already.
inline constexpr std::uint64_t host_descriptors = 8;

/// Why links to so many hosts cannot be held with `limit` descriptors, and the remedy; empty where they can.
[[nodiscard]] std::string descriptors_lacking(std::size_t hosts, std::uint64_t limit);

/// Why these workers cannot be started with `limit` descriptors, and the remedy; empty where they can. The store is
/// counted where this node must hold it: with one node.
///
/// Source: fault model D3.
[[nodiscard]] std::string descriptors_lacking(const LaunchConfig& plan, std::uint64_t limit);

}  // namespace torchup
