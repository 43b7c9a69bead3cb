#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "rendezvous/base/strong.hpp"

namespace torchup {

using Rank = Strong<struct RankTag, int>;              ///< a worker's index in the whole group, from 0
using LocalRank = Strong<struct LocalRankTag, int>;    ///< a worker's index on its node, from 0
using GroupRank = Strong<struct GroupRankTag, int>;    ///< a node's index in the completed round, from 0
using Round = Strong<struct RoundTag, std::int64_t>;   ///< one agreement on members and ranks, counted from 0
using Port = Strong<struct PortTag, std::uint16_t>;    ///< a TCP port, host byte order; 0 where the system may choose
using NodeId = Strong<struct NodeIdTag, std::string>;  ///< one agent's life on one machine; unique within a run
using RunId = Strong<struct RunIdTag, std::string>;    ///< one job; nodes with the same run id meet

/// Monotonic time. Core code gets it as an argument and never reads a clock.
using Duration = std::chrono::steady_clock::duration;
using TimePoint = std::chrono::steady_clock::time_point;

}  // namespace torchup
