#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace torchup {

/// What a rank says of its state when a round begins.
struct RankFacts {
  std::int64_t commits = 0;   ///< how far it is; from the same beginning on all ranks
  bool clean = true;          ///< no step has begun since the last commit
  bool fresh = true;          ///< it comes from nobody yet: as the program has made it
  std::int64_t checksum = 0;  ///< 0 where nobody could have another state after the same steps
  std::int64_t run = 0;       ///< which Elastic::run of its process this is

  friend bool operator==(const RankFacts&, const RankFacts&) = default;
};

/// Whose state is everybody's. All decide on the same list: nobody can skip alone.
struct StateSource {
  int rank = -1;                 ///< -1: nobody knows better than a checkpoint
  std::vector<int> takers = {};  ///< ranks that take its state
  std::vector<int> odd = {};     ///< of them those that should have had it: replicas were not equal

  friend bool operator==(const StateSource&, const StateSource&) = default;
};

/// The lowest rank among the clean ones that are furthest; what a survivor has comes before what a newcomer begins
/// with. That alone is nothing to go on with: where all clean ranks are newcomers, it is nobody.
[[nodiscard]] StateSource choose_source(std::span<const RankFacts> by_rank);

/// The same where no checkpoint knows better: -1 only when no rank is clean.
[[nodiscard]] StateSource choose_source_among_ranks(std::span<const RankFacts> by_rank);

/// Ranks that may be the source: equal, or not? Several of them are worth a look at every byte.
[[nodiscard]] std::vector<int> furthest(std::span<const RankFacts> by_rank);

}  // namespace torchup
