#include "rendezvous/core/diagnosis/lateness.hpp"

#include <catch2/catch.hpp>
#include <limits>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

constexpr std::int64_t ms = 1'000'000;
constexpr std::int64_t start = 1'000'000 * ms;

Arrival arrival(std::int64_t number, std::int64_t at_ns, std::string operation = "gloo:all_reduce",
                std::int64_t elements = 1 << 20) {
  Arrival one;
  one.call = {.group = "0", .number = number, .operation = std::move(operation), .elements = elements};
  one.call.dtype = "Float";
  one.call.created_ns = at_ns;
  return one;
}

/// Ranks from 0 on, which begin a collective every 100 ms, each as much later as it says.
std::vector<RankArrivals> ranks_late_by(const std::vector<std::int64_t>& late_ns, std::int64_t count,
                                        std::int64_t first = 0) {
  std::vector<RankArrivals> ranks;
  for (std::size_t i = 0; i < late_ns.size(); ++i) {
    ranks.push_back({Rank{static_cast<int>(i)}, {}});
    for (std::int64_t n = first; n < first + count; ++n)
      ranks.back().arrivals.push_back(arrival(n, start + 100 * n * ms + late_ns[i]));
  }
  return ranks;
}

Lateness lateness(std::size_t count, std::size_t last, Duration late, Duration period) {
  Lateness one;
  one.count = count;
  one.last = last;
  one.late = late;
  one.period = period;
  return one;
}

}  // namespace

TEST_CASE("lateness is the arrival minus the median of the others'", "[unit][lateness]") {
  const auto window = LatenessMeter{}.window(ranks_late_by({0, 2 * ms, 4 * ms, 30 * ms}, 20));
  REQUIRE(window.ranks.size() == 4);
  CHECK(window.ranks[0].late == -4ms);  // of 2, 4, 30
  CHECK(window.ranks[1].late == -2ms);  // of 0, 4, 30
  CHECK(window.ranks[2].late == 2ms);   // of 0, 2, 30
  CHECK(window.ranks[3].late == 28ms);  // of 0, 2, 4
  CHECK(window.worst == window.ranks[3]);
  CHECK(window.worst->rank == Rank{3});
  CHECK(window.worst->last == 20);
  CHECK(window.worst->period == 100ms);
  CHECK(is_straggler(*window.worst));
  CHECK(LatenessMeter{}.window(ranks_late_by({0, 2 * ms, 30 * ms}, 20)).ranks[2].late == 29ms);  // mean of 0 and 2
}

TEST_CASE("who arrives with another is not last", "[unit][lateness]") {
  const auto window = LatenessMeter{}.window(ranks_late_by({0, 30 * ms, 30 * ms}, 20));
  REQUIRE(window.worst);
  CHECK(window.worst->last == 0);
}

TEST_CASE("fewer than 20 collectives prove nothing, and of many the newest 256 count", "[unit][lateness]") {
  CHECK_FALSE(LatenessMeter{}.window(ranks_late_by({0, 30 * ms}, 19)).worst);
  CHECK(LatenessMeter{}.window(ranks_late_by({0, 30 * ms}, 20)).worst->count == 20);
  CHECK(LatenessMeter{}.window(ranks_late_by({0, 30 * ms}, 256)).worst->count == 256);
  const auto window = LatenessMeter{}.window(ranks_late_by({0, 30 * ms}, 257));
  CHECK(window.worst->count == 256);
  CHECK(window.signatures.at(0).numbers.front().number == 1);
}

TEST_CASE("what a window has used the next one does not use again", "[unit][lateness]") {
  LatenessMeter meter;
  REQUIRE(meter.window(ranks_late_by({0, 30 * ms}, 30)).worst);
  CHECK_FALSE(meter.window(ranks_late_by({0, 30 * ms}, 30)).worst);
  CHECK_FALSE(meter.window(ranks_late_by({0, 30 * ms}, 49)).worst);  // 19 new ones wait
  const auto window = meter.window(ranks_late_by({0, 30 * ms}, 50));
  REQUIRE(window.worst);
  CHECK(window.worst->count == 20);
}

TEST_CASE("collectives at which nobody waits break no row of those at which a rank is late", "[unit][lateness]") {
  // Two to a step, of two sizes, five steps to a window: their twenties come in different windows.
  LatenessMeter meter;
  int found = 0;
  for (std::int64_t steps = 3; steps <= 200; steps += 5) {
    std::vector<RankArrivals> ranks(2);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ranks[rank].rank = Rank{static_cast<int>(rank)};
      for (std::int64_t n = 2; n < 2 * steps; ++n) {
        const std::int64_t late_ns = n % 2 == 0 && rank == 1 ? 30 * ms : 0;
        Collective call{.group = "0", .number = n, .operation = "gloo:all_reduce", .elements = n % 2 == 0 ? 64 : 1};
        call.created_ns = 50 * n * ms + late_ns + 1;
        if (n % 2 == 0 && n <= 6) call.elements = 8;
        ranks[rank].arrivals.push_back({call, {}});
      }
    }
    const auto worst = meter.window(ranks).worst;
    if (!worst || (found == 0 && !is_straggler(*worst))) continue;  // before there are twenty of the first kind
    CHECK(worst->rank == Rank{1});
    CHECK(is_straggler(*worst));
    ++found;
  }
  CHECK(found >= 7);
}

TEST_CASE("what is seldom and very late hides nobody who is late at each step", "[unit][lateness]") {
  LatenessMeter meter;
  for (std::int64_t window = 1; window <= 10; ++window) {
    std::vector<RankArrivals> ranks(2);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ranks[rank].rank = Rank{static_cast<int>(rank)};
      for (std::int64_t n = 0; n < 30 * window; ++n) {
        const bool seldom = n < 25 || n % 30 == 0;  // an evaluation by rank 0, often enough to be known
        const std::int64_t late_ns = (rank == 0) == seldom ? (seldom ? 90 : 30) * ms : 0;
        Collective call{.group = "0", .number = n, .operation = "gloo:all_reduce", .elements = seldom ? 8 : 64};
        call.created_ns = 100 * n * ms + late_ns + 1;
        ranks[rank].arrivals.push_back({call, {}});
      }
    }
    const auto worst = meter.window(ranks).worst;
    REQUIRE(worst);
    CHECK(worst->rank == Rank{window == 1 ? 0 : 1});
    CHECK(is_straggler(*worst));
  }
}

TEST_CASE("a clock that is set back costs no more than one window", "[unit][lateness]") {
  LatenessMeter meter;
  const auto set_back = [](std::int64_t by_ns, std::int64_t count, std::int64_t first) {
    auto ranks = ranks_late_by({0, 30 * ms}, count, first);
    for (RankArrivals& rank : ranks) {
      for (Arrival& one : rank.arrivals) one.call.created_ns -= by_ns;
    }
    return ranks;
  };
  REQUIRE(meter.window(ranks_late_by({0, 30 * ms}, 30)).worst);
  CHECK_FALSE(meter.window(set_back(900 * ms, 30, 0)).worst);  // it was corrected
  CHECK(meter.window(set_back(900'000 * ms, 30, 30)).worst->count == 30);
  CHECK_FALSE(meter.window(set_back(900'000 * ms, 30, 30)).worst);
}

TEST_CASE("only collectives that all local ranks of the group have are compared", "[unit][lateness]") {
  auto ranks = ranks_late_by({0, 30 * ms, 0}, 30);
  ranks[2].arrivals.erase(ranks[2].arrivals.begin(), ranks[2].arrivals.begin() + 10);
  CHECK(LatenessMeter{}.window(ranks).worst->count == 20);
  ranks[2].arrivals.pop_back();
  CHECK_FALSE(LatenessMeter{}.window(ranks).worst);
  ranks[2].arrivals.clear();  // it is no member
  CHECK(LatenessMeter{}.window(ranks).worst->count == 30);
}

TEST_CASE("signatures are compared apart, and the one of the largest median counts", "[unit][lateness]") {
  std::vector<RankArrivals> ranks(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const bool second = rank == 1;
    ranks[rank].rank = Rank{static_cast<int>(rank)};
    for (std::int64_t n = 0; n < 60; n += 3) {
      const std::int64_t at = start + 100 * n * ms;
      ranks[rank].arrivals.push_back(arrival(n, at + (second ? 0 : 9 * ms)));
      ranks[rank].arrivals.push_back(arrival(n + 1, at + 40 * ms + (second ? 20 * ms : 0), "gloo:all_reduce", 7));
      ranks[rank].arrivals.push_back(arrival(n + 2, at + 80 * ms + (second ? 5 * ms : 0), "gloo:broadcast", 7));
    }
  }
  const auto window = LatenessMeter{}.window(ranks);
  REQUIRE(window.signatures.size() == 3);
  CHECK(window.worst->signature == CollectiveSignature{"0", "gloo:all_reduce", 7});
  CHECK(window.worst->rank == Rank{1});
  CHECK(window.worst->late == 20ms);
}

TEST_CASE("of buckets that follow each other the period is a step's share, and a pause is no part of it",
          "[unit][lateness]") {
  std::vector<RankArrivals> ranks(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ranks[rank].rank = Rank{static_cast<int>(rank)};
    for (std::int64_t n = 0; n < 64; ++n) {
      const std::int64_t pause = n >= 32 ? 600'000 * ms : 0;
      const std::int64_t step = n / 2 * 100 * ms, bucket = n % 2 * ms;
      ranks[rank].arrivals.push_back(arrival(n, start + pause + step + bucket + (rank == 1 ? 30 * ms : 0)));
    }
  }
  const auto window = LatenessMeter{}.window(ranks);
  CHECK(window.worst->period >= 45ms);
  CHECK(window.worst->period <= 55ms);
}

TEST_CASE("a straggler is last in 70 %, by 5 % of the period and by a millisecond", "[unit][lateness]") {
  CHECK(is_straggler(lateness(200, 140, 5ms, 100ms)));
  CHECK_FALSE(is_straggler(lateness(200, 139, 5ms, 100ms)));
  CHECK_FALSE(is_straggler(lateness(200, 140, 5ms - 1ns, 100ms)));
  CHECK(is_straggler(lateness(200, 140, 1ms, 10ms)));
  CHECK_FALSE(is_straggler(lateness(200, 140, 1ms - 1ns, 10ms)));
  CHECK_FALSE(is_straggler(lateness(0, 0, 5ms, 100ms)));
  CHECK_FALSE(is_straggler(lateness(200, 201, 5ms, 100ms)));
  CHECK(is_straggler(lateness(20, 17, 5ms, 100ms)));
  CHECK_FALSE(is_straggler(lateness(20, 16, 5ms, 100ms)));  // one of 170 windows of two equal ranks has it
}

TEST_CASE("with durations of the device, late is who waits least", "[unit][lateness]") {
  auto ranks = ranks_late_by({0, 9 * ms, 0}, 20);  // the second rank's calls are late, the third one's device is
  for (std::size_t rank = 0; rank < 3; ++rank) {
    for (Arrival& one : ranks[rank].arrivals) {
      one.call.operation = "nccl:all_reduce";
      one.duration_ms = rank == 2 ? 2.0 : 33.0;
    }
  }
  auto window = LatenessMeter{}.window(ranks);
  CHECK(window.worst->rank == Rank{2});
  CHECK(window.worst->late == 31ms);
  CHECK(window.worst->last == 20);
  CHECK_FALSE(window.worst->cpu_side);
  ranks[0].arrivals[3].duration_ms.reset();
  window = LatenessMeter{}.window(ranks);
  CHECK(window.worst->rank == Rank{1});
  CHECK(window.worst->late == 9ms);
  CHECK(window.worst->cpu_side);
}

TEST_CASE("point-to-point calls, calls without a time and a rank alone have no lateness", "[unit][lateness]") {
  auto ranks = ranks_late_by({0, 30 * ms}, 40);
  for (Arrival& one : ranks[1].arrivals) one.call.point_to_point = true;
  CHECK_FALSE(LatenessMeter{}.window(ranks).worst);
  ranks = ranks_late_by({0, 30 * ms}, 40);
  for (Arrival& one : ranks[0].arrivals) one.call.created_ns = 0;
  const auto window = LatenessMeter{}.window(ranks);
  CHECK_FALSE(window.worst);
  REQUIRE(window.signatures.size() == 1);  // other nodes may have members
  CHECK(window.signatures[0].only_rank == Rank{1});
  CHECK(LatenessMeter{}.window({}) == LatenessWindow{});
}

TEST_CASE("a collective that is told twice counts once, with its newer time", "[unit][lateness]") {
  auto ranks = ranks_late_by({0, 30 * ms}, 20);
  auto old = ranks[1].arrivals;
  for (Arrival& one : old) one.call.created_ns -= 1000 * ms;
  ranks[1].arrivals.insert(ranks[1].arrivals.begin(), old.begin(), old.end());
  const auto window = LatenessMeter{}.window(ranks);
  CHECK(window.worst->count == 20);
  CHECK(window.worst->late == 30ms);
}

TEST_CASE("times and durations of a stranger overflow nothing", "[unit][lateness]") {
  auto ranks = ranks_late_by({0, 30 * ms, 0}, 40);
  for (Arrival& one : ranks[1].arrivals) one.call.created_ns = std::numeric_limits<std::int64_t>::max();
  CHECK(LatenessMeter{}.window(ranks).worst->rank == Rank{1});
  for (auto& rank : ranks) {
    for (Arrival& one : rank.arrivals) one.duration_ms = 1e300;
  }
  CHECK(LatenessMeter{}.window(ranks).worst->rank == Rank{1});  // no durations
  CHECK(median_of({std::numeric_limits<std::int64_t>::max() - 1, std::numeric_limits<std::int64_t>::max() - 1}) ==
        std::numeric_limits<std::int64_t>::max() - 1);
}
