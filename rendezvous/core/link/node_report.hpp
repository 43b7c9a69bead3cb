#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/base/types.hpp"

namespace torchup {

/// What a worker does, as one letter for each local rank of a node, and as the word that counts of ranks are told
/// under.
struct RankState {
  char letter = '?';
  std::string_view word = "unknown";
};
inline constexpr std::array rank_states{
    RankState{'-', "not_started"}, RankState{'s', "started"},  ///< no step yet, though it reports steps
    RankState{'r', "running"},     RankState{'w', "waiting"},  ///< in a collective for over a second
    RankState{'h', "hung"},        RankState{'d', "exited"},   ///< with 0
    RankState{'x', "failed"},      RankState{'t', "ended"},    ///< by us
    RankState{'?', "unknown"},
};
/// Where that letter stands in rank_states; a letter that is none of them is unknown.
[[nodiscard]] constexpr std::size_t rank_state_index(char letter) {
  std::size_t at = 0;
  while (at + 1 < rank_states.size() && rank_states[at].letter != letter) ++at;
  return at;
}

/// What the time of ranks is spent on (core/ops/time_ledger says how it is found), in the order in which it is told.
inline constexpr std::array<std::string_view, 9> spent_words{"useful", "waiting", "startup",   "failure", "change",
                                                             "redone", "hang",    "straggler", "shutdown"};
/// Rank milliseconds for each of spent_words.
using SpentTime = std::array<std::int64_t, spent_words.size()>;

/// How far the workers of a node are that report steps.
struct StepReport {
  std::int64_t least = 0, most = 0;   ///< their last steps, by the program's own numbers
  std::int64_t milli_per_second = 0;  ///< steps
  Duration age{0};                    ///< since the newest of their steps ended
  friend bool operator==(const StepReport&, const StepReport&) = default;
};

/// What an agent tells of its node's workers beside its keep-alives, at most once a second.
struct NodeReport {
  std::string ranks = {};                ///< a letter for each local rank
  std::optional<StepReport> steps = {};  ///< nothing: no worker reports any
  std::uint64_t beats = 0;               ///< ends of steps of all its workers, since the agent began
  SpentTime spent = {};                  ///< since the agent began, as if the job ended now
  friend bool operator==(const NodeReport&, const NodeReport&) = default;
};

}  // namespace torchup
