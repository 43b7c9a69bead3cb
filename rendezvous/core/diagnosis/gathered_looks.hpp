#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/diagnosis/rank_look.hpp"

namespace torchup {

/// Of all that a coordinator keeps of one look.
inline constexpr std::size_t gathered_bytes_max = std::size_t{64} << 20;
/// Jobs with more ranks are not looked at.
inline constexpr int looked_ranks_max = 1 << 20;

/// The ranks of one agent, which follow each other.
struct NodeRanks {
  NodeId node{""};
  std::string host = {};
  Rank first_rank{0};
  int workers = 0;
  friend bool operator==(const NodeRanks&, const NodeRanks&) = default;
};

/// The answers to one look, as bytes until they are judged. What would be beyond `bytes_max` is cut: first the stacks
/// of those that wait for others, then all stacks; then no further rank is taken. So whoever keeps others waiting is
/// the last of whom something is missing.
class GatheredLooks {
 public:
  /// `world_size` is looked_ranks_max at most.
  explicit GatheredLooks(int world_size, std::size_t bytes_max = gathered_bytes_max);

  /// One part of an agent's answer. What it says of ranks that are not its own, or for the second time, is passed over,
  /// and so is a look that cannot be decoded.
  /// Errors: as split_part.
  Result<void> add(const NodeRanks& node, std::string_view part);

  /// A rank has made progress between the two looks at it: what was seen is of no one moment.
  [[nodiscard]] bool progressed() const { return progressed_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] int world_size() const { return world_size_; }
  /// As its agent told it; empty where nothing is known of it.
  [[nodiscard]] std::optional<RankLook> look(Rank rank) const;

 private:
  enum class Cut : int { nothing, waiting, stacks, ranks };
  [[nodiscard]] bool may_keep_whole(const RankLook& look) const;
  void keep(int rank, std::string bytes);
  void cut_more();

  int world_size_;
  std::unordered_map<int, std::string> kept_;  ///< by rank, encoded: how many there should be costs nothing
  std::size_t bytes_max_;
  std::size_t bytes_ = 0;
  Cut cut_ = Cut::nothing;
  bool progressed_ = false;
};

}  // namespace torchup
