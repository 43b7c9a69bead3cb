#pragma once

#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "rendezvous/core/diagnosis/hang_watch.hpp"
#include "rendezvous/core/diagnosis/look_parts.hpp"
#include "tests/unit/diagnosis/looks.hpp"

/// A job of two nodes that makes no progress, and the watch over it, for its tests.
namespace torchup::silent_job {

using namespace torchup::looks;
using namespace std::chrono_literals;
using hang::Action;
using hang::Found;
using hang::Over;
using hang::Void;

inline constexpr TimePoint t0{};
inline const NodeId a{"a"}, b{"b"};

inline ProgressReport running(Duration silence, Duration median = 1s, Duration longest = 2s) {
  return {.watched = true, .progressed = true, .silence = silence, .median_gap = median, .longest_gap = longest};
}
inline ProgressReport starting(Duration silence) { return {.watched = true, .silence = silence}; }

/// A job of two nodes with two ranks each, which have begun.
struct Job {
  explicit Job(HangSettings settings = {}) : watch{settings} {
    REQUIRE(watch.step(hang::AttemptBegins{nodes(), 4}, t0).empty());
  }
  static std::vector<NodeRanks> nodes() { return {{a, "nodea", Rank{0}, 2}, {b, "nodeb", Rank{2}, 2}}; }
  std::vector<Action> tell(const NodeId& node, const ProgressReport& report, TimePoint now) {
    return watch.step(hang::Reported{node, report}, now);
  }
  /// Both have been silent for so long; what is asked then.
  std::vector<Action> silent(Duration silence, TimePoint now) {
    REQUIRE(tell(a, running(silence + 1s), now).empty());
    return tell(b, running(silence), now);
  }
  std::vector<Action> answer(const NodeId& node, std::uint64_t number, std::vector<RankLook> looks, TimePoint now) {
    return watch.step(hang::Answered{node, number, pack_looks(looks).front()}, now);
  }
  /// Rank 3 does not move, or does; the others wait for it.
  std::vector<Action> answer_both(std::uint64_t number, RankLook rank_3, TimePoint now) {
    REQUIRE(answer(a, number, {waiting(0), waiting(1)}, now).empty());
    return answer(b, number, {waiting(2), at(std::move(rank_3), "0", "0-3", 1233)}, now);
  }
  static RankLook waiting(int rank) { return in(still(rank), "0", "0-3", 1234); }

  HangWatch watch;
};

inline const Found& found(const std::vector<Action>& actions) {
  REQUIRE(actions.size() == 1);
  REQUIRE(std::holds_alternative<Found>(actions[0]));
  return std::get<Found>(actions[0]);
}
inline std::vector<Action> examine(std::uint64_t number, bool asked = false) { return {hang::Examine{number, asked}}; }

}  // namespace torchup::silent_job
