#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

/// Stretches of a set that is read. Groups of a real job have a few: neighbours, or every n-th rank.
inline constexpr std::size_t rank_runs_max = 1024;

/// `first`, `first + step`, … `last`. 0 <= first <= last < world_size_max; step >= 1, and 1 where there is but one.
struct RankRun {
  int first = 0;
  int last = 0;
  int step = 1;
  friend bool operator==(const RankRun&, const RankRun&) = default;
};

/// A set of ranks as stretches, which do not overlap and stand in order: a group of 100,000 ranks takes a few bytes,
/// and no number that a stranger wrote makes it larger than its text.
class RankSet {
 public:
  RankSet() = default;
  /// In any order; what is there twice counts once.
  explicit RankSet(std::vector<Rank> ranks);

  [[nodiscard]] bool empty() const { return runs_.empty(); }
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] bool contains(Rank rank) const;
  [[nodiscard]] const std::vector<RankRun>& runs() const { return runs_; }
  /// In order, those below `end` alone: who knows how many ranks there are is kept from counting beyond.
  [[nodiscard]] std::vector<Rank> below(int end) const;

  friend bool operator==(const RankSet&, const RankSet&) = default;

 private:
  friend Result<RankSet> parse_rank_set(std::string_view text);
  std::vector<RankRun> runs_;
};

/// "0-7,12-60:4": the ranks 0 to 7, and every fourth from 12 to 60. An empty text is the empty set.
[[nodiscard]] std::string to_text(const RankSet& ranks);

/// Errors: errc::bad_value for anything else, for stretches that are out of order or overlap, a last rank that the step
/// does not meet, a rank beyond world_size_max; errc::limit_exceeded beyond rank_runs_max stretches.
[[nodiscard]] Result<RankSet> parse_rank_set(std::string_view text);

}  // namespace torchup
