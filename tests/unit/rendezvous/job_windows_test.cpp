// The watch over a job: windows of arrivals.
#include "watched_job.hpp"

using namespace torchup;
using namespace torchup::watched_job;
using namespace std::chrono_literals;

namespace {

const JobTerms windows{.min_nodes = 2, .max_nodes = 2, .straggler_window = 20s};

/// A node that begins `count` collectives each 100 ms, `late` after the others.
ToldWindow arrivals(std::uint64_t number, Duration late, int count = 32) {
  LatestArrivals told{.signature = {"0", "gloo:all_reduce", 1 << 20}, .dtype = "Float", .period = 100ms};
  for (int i = 0; i < count; ++i) {
    const auto first = static_cast<std::int64_t>(number) * 1000 + i;
    told.numbers.push_back({first, std::chrono::nanoseconds{first * 100ms + late}.count()});
  }
  return {.number = number, .told = {told}};
}

std::string arrive(Watched& job, const std::string& name, const ToldWindow& window) {
  return job.step(watch::Arrived{job.peer(name), {encode_window(window)}});
}

std::string ask_arrivals(std::uint64_t number) {
  return fmt::format("a examine {} arrivals\nb examine {} arrivals\n", number, number);
}

}  // namespace

TEST_CASE("arrivals are asked for in each window, and the node that is late in three is told of",
          "[unit][rendezvous][diagnosis]") {
  Watched job{2, windows};
  REQUIRE(job.report_all(silent(0s)) == "");
  REQUIRE(job.watch.deadline() == t0 + 20s);
  std::string told;
  for (std::uint64_t window = 0; window < 3; ++window) {
    REQUIRE(told == "");
    const TimePoint begins = t0 + (static_cast<int>(window) + 1) * 20s;
    REQUIRE(job.at(begins - 1ns) == "");
    REQUIRE(job.at(begins) == ask_arrivals(window));
    REQUIRE(job.watch.deadline() == begins + look_wait_max);
    REQUIRE(arrive(job, "a", arrivals(window, 0ms)) == "");
    REQUIRE(job.watch.held_bytes() > 0);
    told = arrive(job, "b", arrivals(window, 31ms));
    REQUIRE(job.watch.held_bytes() == 0);
  }
  const std::string late =
      "node b is late: last in 100 % of 32 all_reduce (4.0 MiB), by 31 ms of a 100 ms step; the others wait for it\n";
  REQUIRE(told == "note: " + late + "a " + late + "b " + late);
}

TEST_CASE("a window takes one answer of each node, with its number, for five seconds",
          "[unit][rendezvous][diagnosis]") {
  Watched job{2, windows};
  REQUIRE(job.report_all(silent(0s)) == "");
  REQUIRE(job.at(t0 + 20s) == ask_arrivals(0));
  ToldWindow first{.late_ranks = {{Rank{0}, 5ms}, {Rank{1}, 7ms}, {Rank{2}, 9ms}}};
  REQUIRE(arrive(job, "a", {.number = 1, .late_ranks = {{Rank{0}, 1ms}}}) == "");
  REQUIRE(arrive(job, "a", first) == "");
  REQUIRE(arrive(job, "a", {.late_ranks = {{Rank{0}, 1ms}}}) == "");
  REQUIRE(job.at(t0 + 20s + look_wait_max - 1ns) == "");
  REQUIRE(job.watch.late_workers().empty());
  REQUIRE(job.at(t0 + 20s + look_wait_max) == "");
  // Rank 2 is none of a's.
  REQUIRE(job.watch.late_workers() == std::vector<LateWorker>{{Rank{1}, "a", 7ms}, {Rank{0}, "a", 5ms}});
  REQUIRE(arrive(job, "b", {.late_ranks = {{Rank{2}, 1ms}}}) == "");
  REQUIRE(job.watch.late_workers().size() == 2);
  REQUIRE(job.watch.deadline() == t0 + 40s);

  job.job.gone("b");
  job.step(watch::RoundStepped{});
  REQUIRE(job.watch.late_workers().empty());
  REQUIRE(job.watch.deadline() == std::nullopt);
}

TEST_CASE("an answer that cannot be understood is none, and is not waited for", "[unit][rendezvous][diagnosis]") {
  Watched job{2, windows};
  job.report_all(silent(0s));
  REQUIRE(job.at(t0 + 20s) == ask_arrivals(0));
  REQUIRE(job.step(watch::Arrived{job.peer("a"), {"\xff"}}) == "");
  REQUIRE(arrive(job, "b", arrivals(0, 31ms)) == "");
  REQUIRE(job.watch.deadline() == t0 + 40s);
}

TEST_CASE("nobody is asked for arrivals where there are none", "[unit][rendezvous][diagnosis]") {
  SECTION("nobody is watched") {
    Watched job{2, windows};
    job.report_all({.watched = false, .silence = 3s});
    REQUIRE(job.at(t0 + 20s) == "");
    REQUIRE(job.watch.deadline() == t0 + 40s);
    job.report("b", silent(0s));
    REQUIRE(job.at(t0 + 40s) == ask_arrivals(0));
  }
  SECTION("the user wants no windows") {
    Watched job;
    job.report_all(silent(0s));
    REQUIRE(job.watch.deadline() == std::nullopt);
  }
  SECTION("there is but one rank") {
    Job one{{.straggler_window = 20s}};
    one.join("a", 1);
    one.say("a", StoreReady{Round{0}, Port{4000}});
    Watched job{std::move(one)};
    job.report("a", silent(0s));
    REQUIRE(job.watch.deadline() == std::nullopt);
  }
  SECTION("the ranks are being looked at") {
    Watched job{2, windows};
    job.job.now = t0 + 18s;
    REQUIRE(job.report_all(silent(64s)) == examine_0);
    REQUIRE(job.at(t0 + 20s) == "");
    REQUIRE(job.at(t0 + 23s).find("found 0") != std::string::npos);
    REQUIRE(job.at(t0 + 25s) == ask_arrivals(0));
  }
}

TEST_CASE("what many nodes tell of one window stays within its limit", "[unit][rendezvous][diagnosis]") {
  constexpr int nodes = 1200;
  Job many{{.min_nodes = nodes, .max_nodes = nodes, .straggler_window = 20s}};
  for (int i = 0; i < nodes; ++i) many.join(fmt::format("n{}", i), 2);
  many.say("n0", StoreReady{Round{0}, Port{4000}});
  Watched job{std::move(many)};
  job.report("n0", silent(0s));
  job.job.now = t0 + 20s;
  job.step(watch::RoundStepped{});
  ToldWindow largest{.worst = Lateness{.count = 30, .late = 5ms}};
  for (std::size_t i = 0; i < told_signatures_max; ++i) {
    const std::string group = std::to_string(i) + std::string(look_group_bytes_max - 4, 'g');
    largest.told.push_back({.signature = {group, std::string(look_operation_bytes_max, 'o'), 1},
                            .numbers = std::vector<LatestArrivals::Number>(told_numbers_max)});
  }
  const std::string part = encode_window(largest);
  REQUIRE(part.size() <= diagnosis_part_bytes_max);
  for (int i = 0; i + 1 < nodes; ++i) {
    REQUIRE(job.step(watch::Arrived{job.peer(fmt::format("n{}", i)), {part}}) == "");
    REQUIRE(job.watch.held_bytes() <= arrivals_bytes_max);
  }
  REQUIRE(job.watch.held_bytes() > arrivals_bytes_max * 9 / 10);
}

TEST_CASE("the latest workers are shown, and no more than there is room for", "[unit][rendezvous][diagnosis]") {
  const int workers = static_cast<int>(late_ranks_told_max);
  Job large{windows};
  large.join("a", workers);
  large.join("b", 2);
  large.say("a", StoreReady{Round{0}, Port{4000}});
  Watched job{std::move(large)};
  job.report_all(silent(0s));
  REQUIRE(job.at(t0 + 20s) == ask_arrivals(0));
  ToldWindow told;
  for (int rank = 0; rank < workers; ++rank) told.late_ranks.push_back({Rank{rank}, rank * 1us});
  REQUIRE(arrive(job, "a", told) == "");
  SECTION("as many as there is room for") {
    REQUIRE(arrive(job, "b", {}) == "");
    REQUIRE(job.watch.late_workers().size() == late_workers_shown_max);
    REQUIRE(job.watch.late_workers().back() == LateWorker{Rank{0}, "a", 0us});
  }
  SECTION("one more") {
    REQUIRE(arrive(job, "b", {.late_ranks = {{Rank{workers}, 1s}}}) == "");
    REQUIRE(job.watch.late_workers().size() == late_workers_shown_max);
    REQUIRE(job.watch.late_workers().front() == LateWorker{Rank{workers}, "b", 1s});
    REQUIRE(job.watch.late_workers().back() == LateWorker{Rank{1}, "a", 1us});
  }
}
