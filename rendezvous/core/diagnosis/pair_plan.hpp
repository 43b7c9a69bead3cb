#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/base/types.hpp"

/// Which nodes try the way between them before a job starts, and whom the results condemn.
namespace torchup {

inline constexpr int pair_matchings = 8;       ///< over TCP
inline constexpr int nccl_pair_matchings = 2;  ///< over NCCL: each pair is a world of two nodes
/// A pair with less than this share of the median of all is bad.
inline constexpr double pair_rate_share_min = 0.5;
inline constexpr std::size_t pair_ends_told_max = 8;  ///< other ends that a reason names

/// Two nodes by their group rank, the smaller first.
struct NodePair {
  GroupRank first{0};
  GroupRank second{0};
  friend auto operator<=>(const NodePair&, const NodePair&) = default;
};
/// Pairs that can be tried at once: each node is in one of them, but one node where their count is odd.
using Matching = std::vector<NodePair>;

/// `matchings` of them, in which no two nodes meet twice; as many as there are for a few nodes. The same for all who
/// know the round, and others in another round. None for fewer than two nodes or more than nodes_max.
[[nodiscard]] std::vector<Matching> pair_plan(int nodes, Round round, int matchings = pair_matchings);

/// What one end says of a pair; both may.
struct PairResult {
  NodePair pair;
  bool connected = false;
  std::int64_t bytes_per_s = 0;
  std::string problem = {};  ///< why not: a stranger's text
  friend bool operator==(const PairResult&, const PairResult&) = default;
};

enum class PairRule : std::uint8_t {
  half,  ///< bad in half of its pairs or more: over TCP
  all,   ///< bad in all of them: over NCCL
};

struct UnfitNode {
  GroupRank node{0};
  std::string reason = {};  ///< names the other ends
  friend bool operator==(const UnfitNode&, const UnfitNode&) = default;
};

/// The nodes that the results condemn, by group rank. A pair is bad when it has no connection, or less than
/// pair_rate_share_min of the median of those that have one; of what both ends say the worse counts.
///
/// Who has the largest share of bad pairs is condemned first, and its pairs count no more: so a node is not condemned
/// for the sake of another one that none can reach. Where the largest share is that of several, all of them are: of two
/// ends nobody knows which one it is.
///
/// `hosts[g]` is the name of the node with group rank g. A result beyond them is passed over.
[[nodiscard]] std::vector<UnfitNode> unfit_in(std::span<const PairResult> results, std::span<const std::string> hosts,
                                              PairRule rule = PairRule::half);

/// The rate that unfit_in compares with: of the pairs that are connected; 0 when none is.
[[nodiscard]] double median_rate(std::span<const PairResult> results, std::size_t nodes);

/// What a node that was condemned makes of its pairs when it has tried them again alone, against the median of then:
/// why it still is unfit by PairRule::half; empty: it is not. No results at all: nobody is there to try, and it is not.
[[nodiscard]] std::string unfit_again(std::span<const PairResult> results, std::span<const std::string> hosts,
                                      GroupRank own, double median);

}  // namespace torchup
