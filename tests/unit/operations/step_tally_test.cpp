#include "launcher/core/agent/step_tally.hpp"

#include <catch2/catch.hpp>
#include <limits>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

const TimePoint t0{};
const LocalRank first{0}, second{1};
constexpr std::int64_t s = 1'000'000'000;  // nanoseconds

WorkerProgress beat(std::uint64_t beats, std::int64_t step, std::int64_t ended_s, std::int64_t waited_s = 0) {
  return {.beats = beats, .step = step, .ended_ns = ended_s * s, .waited_ns = waited_s * s};
}

/// As our runtime writes it.
WorkerProgress known(std::uint64_t beats, std::int64_t step, std::int64_t ended_s, std::int64_t waited_s) {
  WorkerProgress progress = beat(beats, step, ended_s);
  progress.first_step = 5;
  progress.first_ns = 10 * s;
  progress.total_waited_ns = waited_s * s;
  return progress;
}

}  // namespace

TEST_CASE("a page that tells of the first step is believed, however late it is seen", "[unit][steps]") {
  StepTally tally{2};
  tally.begin(Rank{4}, {}, t0);
  CHECK_FALSE(tally.of(first));
  tally.look(first, known(3, 7, 14, 2));
  tally.look(first, known(9, 13, 40, 5));
  CHECK(tally.of(first) == WorkerSteps{9, 5, 13, 10'000'000, 40'000'000, 5'000'000});
  CHECK_FALSE(tally.of(second));
}

TEST_CASE("where the page does not, what was seen counts", "[unit][steps]") {
  StepTally tally{1};
  tally.begin(Rank{0}, {}, t0);
  tally.look(first, beat(2, 8, 20, 3));
  tally.look(first, beat(2, 8, 20, 3));
  CHECK(tally.of(first) == WorkerSteps{2, 8, 8, 20'000'000, 20'000'000, 0});
  tally.look(first, beat(4, 10, 30, 1));
  tally.look(first, beat(4, 10, 30, 1));
  tally.look(first, beat(5, 11, 35, 2));
  CHECK(tally.of(first) == WorkerSteps{5, 8, 11, 20'000'000, 35'000'000, 3'000'000});
}

TEST_CASE("a worker that lives on begins anew with each attempt", "[unit][steps]") {
  StepTally tally{2};
  tally.begin(Rank{0}, {}, t0);
  tally.look(first, known(6, 10, 30, 4));
  tally.look(second, known(6, 10, 30, 4));
  tally.begin(Rank{0}, std::vector{first}, t0);
  CHECK_FALSE(tally.of(first));
  tally.look(first, known(6, 10, 30, 4));
  CHECK_FALSE(tally.of(first));
  tally.look(first, known(8, 9, 50, 9));
  tally.look(first, known(9, 10, 55, 10));
  CHECK(tally.of(first) == WorkerSteps{3, 9, 10, 50'000'000, 55'000'000, 1'000'000});
  tally.look(second, known(1, 5, 10, 0));
  CHECK(tally.of(second) == WorkerSteps{1, 5, 5, 10'000'000, 10'000'000, 0});
}

TEST_CASE("progress is told each half minute, and when an attempt ends", "[unit][steps]") {
  StepTally tally{2};
  tally.begin(Rank{4}, {}, t0);
  CHECK_FALSE(tally.tell(t0 + 30s, false));  // nobody reports steps
  tally.look(first, known(11, 15, 20, 1));
  tally.look(second, known(21, 25, 20, 1));
  CHECK_FALSE(tally.tell(t0 + 60s - 1ns, false));
  auto told = tally.tell(t0 + 60s, false);
  REQUIRE(told);
  CHECK((told->step_min == 15 && told->step_max == 25));
  CHECK(told->steps_per_second == Approx(2));  // of the one that is farthest: 20 steps in 10 s
  CHECK(told->ranks == std::vector<RankSteps>{{Rank{4}, *tally.of(first)}, {Rank{5}, *tally.of(second)}});
  CHECK_FALSE(tally.tell(t0 + 61s, false));
  tally.look(second, known(31, 35, 40, 1));
  told = tally.tell(t0 + 61s, true);
  CHECK(told->steps_per_second == Approx(0.5));
  CHECK(tally.tell(t0 + 62s, true)->steps_per_second == 0);
}

TEST_CASE("a page that says what it likes breaks nothing", "[unit][steps]") {
  constexpr auto least = std::numeric_limits<std::int64_t>::min();
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  StepTally tally{1};
  tally.begin(Rank{0}, {}, t0);
  std::uint64_t beats = 0;
  for (const std::int64_t number : {most, least, std::int64_t{0}, most, most, least}) {
    WorkerProgress progress;
    progress.beats = ++beats;
    progress.step = progress.ended_ns = progress.waited_ns = number;
    tally.look(first, progress);
    progress.beats = beats == 3 ? 1 : ++beats;
    progress.first_ns = progress.total_waited_ns = std::max(number, std::int64_t{0});
    tally.look(first, progress);
    const auto steps = tally.of(first);
    CHECK((steps->waited_us >= 0 && steps->last_us >= steps->first_us && steps->first_us >= 0));
    CHECK(tally.tell(t0, true)->steps_per_second >= 0);
  }
}
