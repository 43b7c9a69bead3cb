#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/messages.hpp"

/// Who sits where in a round: the one place that orders nodes and counts ranks.
namespace torchup {

/// One node's place in a round.
struct Seat {
  GroupRank group_rank{0};
  Rank first_rank{0};       ///< of its local rank 0
  Rank first_role_rank{0};  ///< the same among workers of its role
  int role_world_size = 0;  ///< workers of its role in the round
  friend bool operator==(const Seat&, const Seat&) = default;
};

/// What seating needs to know of a node.
struct Candidate {
  const Join* join = nullptr;
  std::uint64_t seniority = 0;  ///< smaller joined earlier
};

struct Seating {
  std::vector<std::size_t> order = {};  ///< order[g] is the index, among the candidates, of group rank g
  std::vector<Seat> seats = {};         ///< by group rank
  int world_size = 0;
};

/// What of a node its share of the ranks depends on.
struct NodeWorkers {
  std::string_view role = {};
  int local_world_size = 0;
};

/// The seats of nodes that are given by group rank; result and argument have one length. A node's workers are
/// consecutive, so all ranks are 0 to the sum less one without gaps, and likewise the role ranks of each role.
///
/// Source: torchrun, torch/distributed/elastic/agent/server/api.py, _assign_worker_ranks.
[[nodiscard]] std::vector<Seat> share_ranks(std::span<const NodeWorkers> nodes);

/// Seats all candidates. Where all demand a group rank, the order of those is taken, else `order`.
[[nodiscard]] Seating seat(std::span<const Candidate> candidates, RankOrder order,
                           const std::vector<std::string>& hosts);

/// How many nodes a round may have, `multiple_of` aside.
struct JobRange {
  int min_nodes = 1;
  int max_nodes = 1;
  friend bool operator==(const JobRange&, const JobRange&) = default;
};
[[nodiscard]] inline JobRange range_of(const JobTerms& terms) { return {terms.min_nodes, terms.max_nodes}; }

/// The largest round that `nodes` nodes allow; 0 when they are too few.
[[nodiscard]] int round_size(const JobRange& range, int multiple_of, int nodes);
[[nodiscard]] int round_size(const JobTerms& terms, int nodes);

/// Order of host names and addresses as people expect it: digits count as numbers, so node9 < node10.
[[nodiscard]] bool natural_less(std::string_view left, std::string_view right);

}  // namespace torchup
