#include "worker_runtime/elastic/agreement.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <set>

#include "worker_runtime/elastic/step_seed.hpp"

using namespace torchup;

namespace {

RankFacts survivor(std::int64_t commits, std::int64_t checksum = 5) {
  return {.commits = commits, .clean = true, .fresh = false, .checksum = checksum, .run = 1};
}
RankFacts torn(std::int64_t commits) {
  return {.commits = commits, .clean = false, .fresh = false, .checksum = 0, .run = 1};
}
RankFacts newcomer(std::int64_t checksum = 0) {
  return {.commits = 0, .clean = true, .fresh = true, .checksum = checksum, .run = 1};
}

}  // namespace

TEST_CASE("the furthest clean rank is the source, the lowest of equal ones", "[unit][agreement]") {
  const std::array ranks{newcomer(), survivor(7), survivor(6), survivor(7), torn(8)};
  REQUIRE(choose_source(ranks) == StateSource{.rank = 1, .takers = {0, 2, 4}, .odd = {}});
  REQUIRE(furthest(ranks) == std::vector{1, 3});
}

TEST_CASE("all alike: nothing is sent", "[unit][agreement]") {
  const std::array ranks{survivor(7), survivor(7)};
  REQUIRE(choose_source(ranks) == StateSource{.rank = 0, .takers = {}, .odd = {}});
}

TEST_CASE("a replica that is not equal takes the source's state, and is named", "[unit][agreement]") {
  const std::array ranks{survivor(7), survivor(7, 6), survivor(7)};
  REQUIRE(choose_source(ranks) == StateSource{.rank = 0, .takers = {1}, .odd = {1}});
}

TEST_CASE("what a survivor has comes before what a newcomer begins with", "[unit][agreement]") {
  const std::array ranks{newcomer(3), survivor(0, 4)};
  REQUIRE(choose_source(ranks) == StateSource{.rank = 1, .takers = {0}, .odd = {}});
}

TEST_CASE("nobody knows better than a checkpoint", "[unit][agreement]") {
  SECTION("at the start") {
    const std::array ranks{newcomer(3), newcomer(4)};
    REQUIRE(choose_source(ranks).rank == -1);
    REQUIRE(choose_source_among_ranks(ranks) == StateSource{.rank = 0, .takers = {1}, .odd = {}});
  }
  SECTION("all that are left were in a step, and the others are new") {
    const std::array ranks{torn(7), newcomer()};
    REQUIRE(choose_source(ranks).rank == -1);
    REQUIRE(choose_source_among_ranks(ranks) == StateSource{.rank = 1, .takers = {0}, .odd = {}});
  }
  SECTION("all were in a step") {
    const std::array ranks{torn(7), torn(7)};
    REQUIRE(choose_source(ranks).rank == -1);
    REQUIRE(choose_source_among_ranks(ranks).rank == -1);
    REQUIRE(furthest(ranks).empty());
  }
}

TEST_CASE("a checkpoint that only the newcomers' ranks lack makes all alike", "[unit][agreement]") {
  const std::array ranks{newcomer(5), newcomer(5), newcomer(5)};
  REQUIRE(choose_source_among_ranks(ranks) == StateSource{.rank = 0, .takers = {}, .odd = {}});
}

TEST_CASE("seeds of ranks, epochs and steps are all different", "[unit][agreement]") {
  std::set<std::uint64_t> seeds;
  for (std::uint64_t rank = 0; rank < 8; ++rank)
    for (std::uint64_t epoch = 0; epoch < 8; ++epoch)
      for (std::uint64_t step = 0; step < 64; ++step)
        seeds.insert(seed_within(seed_within(seed_within(42, rank), epoch), step));
  REQUIRE(seeds.size() == 8 * 8 * 64);
  STATIC_REQUIRE(seed_within(42, 1) != seed_within(1, 42));
}
