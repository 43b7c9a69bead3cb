#pragma once

#include <optional>
#include <vector>

#include "rendezvous/core/diagnosis/hang_verdict.hpp"
#include "rendezvous/core/diagnosis/wait_graph.hpp"

/// What a verdict tells of collectives, read from the graph of who waits.
namespace torchup {

/// Members of a group in different collectives at one number.
struct Mismatch {
  std::vector<int> culprits = {};
  AwaitedCollective collective = {};
};
/// Of each group the lowest number at which somebody waits and not all do the same; of all groups the one with most
/// ranks there.
[[nodiscard]] std::optional<Mismatch> find_mismatch(const WaitGraph& graph);

/// The collective in which most ranks wait for one of `culprits` (in order); with none of them, the one in which most
/// ranks wait at all. Else a point-to-point call to one of them.
[[nodiscard]] std::optional<AwaitedCollective> awaited_collective(const WaitGraph& graph,
                                                                  const std::vector<int>& culprits);

}  // namespace torchup
