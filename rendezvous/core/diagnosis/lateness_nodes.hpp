#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/diagnosis/lateness.hpp"
#include "rendezvous/core/link/clock_offset.hpp"

/// Who arrives last at collectives, between nodes: what agents tell of a window, and the coordinator's rule.
namespace torchup {

inline constexpr std::size_t told_signatures_max = 64;  ///< of one node: the largest
/// Lateness below so many errors of the clocks does not count.
inline constexpr int late_errors_min = 2;

/// What an agent tells of its window: of each signature the latest local arrivals at some numbers, on the
/// coordinator's clock.
///
/// Agents tell nearly the same numbers without asking each other: those whose mixed bits are the least. Multiples of a
/// power of two would be shared as well, but may all be one and the same place of each step, where nobody waits.
/// `shared_groups`, in order, names the groups that have members on other nodes; of others nothing is told.
[[nodiscard]] std::vector<LatestArrivals> told_arrivals(const LatenessWindow& window,
                                                        const ClockOffset::Estimate& clock,
                                                        std::span<const std::string> shared_groups);

/// One node's window, as its agent told it: a stranger's word.
struct NodeWindow {
  NodeId node{""};
  std::string host = {};
  Duration clock_error{0};
  std::optional<Lateness> worst = {};  ///< of its own ranks
  std::vector<LatestArrivals> told = {};
};

/// Who is late in one window.
struct LateMember {
  NodeId node{""};
  std::string host = {};
  Lateness lateness = {};
  friend bool operator==(const LateMember&, const LateMember&) = default;
};
struct WindowFindings {
  bool measured = false;  ///< something was compared; else the window says nothing
  std::optional<LateMember> straggler = {};
  friend bool operator==(const WindowFindings&, const WindowFindings&) = default;
};

/// Up to which number the windows of an attempt have compared each signature. At most twice told_signatures_max.
using ComparedNumbers = std::map<CollectiveSignature, std::int64_t>;

/// The rule over all nodes of a job; with one node it is that node's own.
///
/// Compared are numbers that all nodes which tell a signature have told, and no window before, lateness_least at least.
/// The node of the largest median lateness counts, of those where it is late_errors_min errors or more: its own, or the
/// others' median one where that is larger. A late node with a late rank is that rank, or with one rank in the group
/// that one, else the node. Where no node is late, a rank may still be late in a group that lies within its node. While
/// a node is a straggler by a signature of which less than lateness_least is new, a window in which nobody else is one
/// says nothing.
[[nodiscard]] WindowFindings judge_window(std::span<const NodeWindow> nodes, ComparedNumbers& compared);

}  // namespace torchup
