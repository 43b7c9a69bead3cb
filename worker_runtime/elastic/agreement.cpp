#include "worker_runtime/elastic/agreement.hpp"

#include <algorithm>
#include <cstddef>
#include <tuple>

namespace torchup {
namespace {

/// The larger, the better a source.
auto worth(const RankFacts& facts) { return std::tuple{facts.clean, facts.commits, !facts.fresh}; }

int best_of(std::span<const RankFacts> by_rank) {
  const auto best = std::ranges::max_element(by_rank, {}, worth);  // the first of equal ones
  return best != by_rank.end() && best->clean ? static_cast<int>(best - by_rank.begin()) : -1;
}

}  // namespace

StateSource choose_source(std::span<const RankFacts> by_rank) {
  const bool somebody_knows = std::ranges::any_of(
      by_rank, [](const RankFacts& facts) { return facts.clean && !(facts.fresh && facts.commits == 0); });
  return somebody_knows ? choose_source_among_ranks(by_rank) : StateSource{};
}

StateSource choose_source_among_ranks(std::span<const RankFacts> by_rank) {
  StateSource source{.rank = best_of(by_rank)};
  if (source.rank < 0) return source;
  const RankFacts& best = by_rank[static_cast<std::size_t>(source.rank)];
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const RankFacts& facts = by_rank[rank];
    if (facts.clean && facts.commits == best.commits && facts.checksum == best.checksum) continue;
    source.takers.push_back(static_cast<int>(rank));
    if (facts.clean && facts.commits == best.commits && !facts.fresh && !best.fresh)
      source.odd.push_back(static_cast<int>(rank));
  }
  return source;
}

std::vector<int> furthest(std::span<const RankFacts> by_rank) {
  std::vector<int> ranks;
  const int best = best_of(by_rank);
  for (std::size_t rank = 0; best >= 0 && rank < by_rank.size(); ++rank)
    if (by_rank[rank].clean && by_rank[rank].commits == by_rank[static_cast<std::size_t>(best)].commits)
      ranks.push_back(static_cast<int>(rank));
  return ranks;
}

}  // namespace torchup
