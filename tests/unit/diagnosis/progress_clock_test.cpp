#include "rendezvous/core/diagnosis/progress_clock.hpp"

#include <catch2/catch.hpp>
#include <limits>
#include <vector>

#include "rendezvous/core/link/messages.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

constexpr TimePoint begin{1000s};

std::int64_t ns(TimePoint when) { return std::chrono::nanoseconds{when.time_since_epoch()}.count(); }

WorkerSigns beat(int local_rank, std::uint64_t beats, TimePoint when) {
  return {.local_rank = LocalRank{local_rank}, .watched = true, .beats = beats, .beat_ns = ns(when)};
}

/// Looks once a second, with the same signs, up to and including `until`.
void wait(ProgressClock& clock, const std::vector<WorkerSigns>& signs, TimePoint& now, TimePoint until,
          bool standing = false) {
  for (; now < until; clock.look(signs, standing, now)) now += 1s;
}

}  // namespace

TEST_CASE("silence counts from the newest progress of any worker", "[unit][diagnosis]") {
  ProgressClock clock{1s, begin};
  TimePoint now = begin;
  REQUIRE_FALSE(clock.report().watched);
  clock.look({}, false, now += 1s);
  REQUIRE_FALSE(clock.report().watched);
  std::vector<WorkerSigns> signs{beat(0, 0, {}), beat(1, 0, {})};
  wait(clock, signs, now, begin + 10s);
  REQUIRE(clock.report() == ProgressReport{.watched = true, .silence = 10s});

  signs[1] = beat(1, 1, begin + 10s + 300ms);
  clock.look(signs, false, now += 1s);
  REQUIRE(clock.report() == ProgressReport{.watched = true, .progressed = true, .silence = 700ms});
  wait(clock, signs, now, begin + 14s);
  REQUIRE(clock.report().silence == 3700ms);

  SECTION("a change of collectives is progress too") {
    signs[0].collectives = 5;
    signs[0].collectives_ns = ns(begin + 15s);
    clock.look(signs, false, now += 1s);
    REQUIRE(clock.report().silence == 0s);
    REQUIRE(clock.report().longest_gap == 4700ms);
  }
  SECTION("the newest of two counts") {
    signs = {beat(0, 1, begin + 14s + 100ms), beat(1, 2, begin + 14s + 900ms)};
    clock.look(signs, false, now += 1s);
    REQUIRE(clock.report().silence == 100ms);
    REQUIRE(clock.report().longest_gap == 4600ms);
  }
  SECTION("a worker's clock is believed between two looks alone") {
    for (const std::int64_t when :
         {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}) {
      signs[0].beats += 1;
      signs[0].beat_ns = when;
      clock.look(signs, false, now += 1s);
      REQUIRE(clock.report().silence == (when < 0 ? 1s : 0s));
    }
  }
}

TEST_CASE("time in which nobody could get on is not silence", "[unit][diagnosis]") {
  ProgressClock clock{1s, begin};
  TimePoint now = begin;
  const std::vector<WorkerSigns> signs{beat(0, 1, begin + 500ms)};
  wait(clock, signs, now, begin + 5s);
  REQUIRE(clock.report().silence == 4500ms);
  SECTION("while all stand still") {
    wait(clock, signs, now, begin + 100s, true);
    REQUIRE(clock.report().silence == 4500ms);
    wait(clock, signs, now, begin + 101s);
    REQUIRE(clock.report().silence == 5500ms);
  }
  SECTION("while we stood still ourselves") {
    clock.look(signs, false, now += 3s + 1ns);
    REQUIRE(clock.report().silence == 4500ms);
    clock.look(signs, false, now += 3s);
    REQUIRE(clock.report().silence == 7500ms);
  }
  SECTION("and no gap either") {
    wait(clock, signs, now, begin + 100s, true);
    clock.look(std::vector{beat(0, 2, begin + 100s + 500ms)}, false, now += 1s);
    REQUIRE(clock.report().longest_gap == 5s);
  }
}

TEST_CASE("a kept worker's former steps are no progress of this attempt", "[unit][diagnosis]") {
  ProgressClock clock{1s, begin};
  clock.look(std::vector{beat(0, 900, begin - 1s)}, false, begin + 1s);
  REQUIRE(clock.report() == ProgressReport{.watched = true, .silence = 1s});
  clock.look(std::vector{beat(0, 901, begin + 2s)}, false, begin + 2s);
  REQUIRE(clock.report().progressed);
  ProgressClock other{1s, begin};
  other.look(std::vector{beat(0, 901, begin + 1ns)}, false, begin + 1s);
  REQUIRE(other.report().progressed);
}

TEST_CASE("who is ending makes the report say so", "[unit][diagnosis]") {
  ProgressClock clock{1s, begin};
  WorkerSigns signs = beat(0, 1, begin + 1s);
  clock.look(std::vector{signs}, false, begin + 1s);
  REQUIRE_FALSE(clock.report().ending);
  signs.ending = true;
  clock.look(std::vector{signs}, false, begin + 2s);
  REQUIRE(clock.report().ending);
  ProgressClock other{1s, begin};
  other.worker_ended();
  other.look({}, false, begin + 1s);
  REQUIRE(other.report().ending);
}

TEST_CASE("the median of gaps is an eighth too long at most", "[unit][diagnosis]") {
  REQUIRE(GapCounts{}.median() == 0s);
  for (const Duration gap : std::vector<Duration>{0us, 1us, 7us, 8us, 100us, 15ms, 142ms, 3s, 61s, 1h, 24h}) {
    GapCounts gaps;
    gaps.add(1us);
    for (int i = 0; i < 3; ++i) gaps.add(gap);
    gaps.add(48h);
    REQUIRE(gaps.median() >= gap);
    REQUIRE(gaps.median() <= gap + gap / 8 + 1us);
  }
  GapCounts endless;
  endless.add(Duration::max());
  endless.add(Duration::min());
  endless.add(Duration::max());
  REQUIRE(endless.median() > 24h * 100);
}

TEST_CASE("a worker beyond the most that a node may have is passed over", "[unit][diagnosis]") {
  ProgressClock clock{1s, begin};
  for (const int local_rank : {-1, local_workers_max}) {
    clock.look(std::vector{beat(local_rank, 1, begin + 1s)}, false, begin + 1s);
    REQUIRE_FALSE(clock.report().progressed);
  }
  clock.look(std::vector{beat(local_workers_max - 1, 1, begin + 1s)}, false, begin + 1s);
  REQUIRE(clock.report().progressed);
}
