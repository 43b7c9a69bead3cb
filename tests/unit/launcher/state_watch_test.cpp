#include "launcher/core/agent/state_watch.hpp"

#include <catch2/catch.hpp>

namespace torchup {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint t0{};

std::vector<StateSample> in_state(char state, std::int64_t pid = 7) {
  return {{WorkerId{Rank{0}, LocalRank{0}, pid}, state}};
}

std::string text(const EventBody& event) { return to_text(event).value().text; }

bool stuck(const EventBody& event) { return std::get<event::WorkerUninterruptible>(event).stuck; }

}  // namespace

TEST_CASE("uninterruptible sleep is told when it begins and when it has lasted", "[unit][watch]") {
  StateWatch watch{"r", 5s};
  const auto begun = watch.look(in_state('D'), t0);
  REQUIRE(begun.size() == 1);
  REQUIRE(!stuck(begun.front()));
  REQUIRE(text(begun.front()) ==
          "[r] Worker pid=7 entered uninterruptible sleep (D-state); will mark UNHEALTHY if it remains for 5.0s.");
  SECTION("it ends") {
    REQUIRE(watch.look(in_state('R'), t0 + 4s).empty());
    REQUIRE(!stuck(watch.look(in_state('D'), t0 + 6s).front()));
  }
  SECTION("it stays") {
    REQUIRE(watch.look(in_state('D'), t0 + 5s - 1ns).empty());
    const auto late = watch.look(in_state('D'), t0 + 6s);
    REQUIRE(stuck(late.front()));
    REQUIRE(text(late.front()) ==
            "[r] Worker pid=7 stuck in uninterruptible sleep (D-state) for 6.0s (>= 5.0s); marking "
            "worker group UNHEALTHY and disabling restarts.");
    REQUIRE(watch.look(in_state('D'), t0 + 9s).empty());
  }
  SECTION("another process has the local rank") { REQUIRE(!stuck(watch.look(in_state('D', 8), t0 + 6s).front())); }
}

TEST_CASE("it is not watched unless asked for", "[unit][watch]") {
  StateWatch watch{"r", Duration{0}};
  REQUIRE(watch.look(in_state('D'), t0).empty());
  REQUIRE(watch.look(in_state('D'), t0 + 1h).empty());
}

TEST_CASE("a stopped worker is named, with what lets it go on", "[unit][watch]") {
  StateWatch watch{"r", Duration{0}};
  REQUIRE(watch.look(in_state('T'), t0).empty());
  REQUIRE(text(watch.look(in_state('T'), t0 + 1s).front()) ==
          "worker with local rank 0 is stopped; kill -CONT 7 lets it go on");
  REQUIRE(watch.look(in_state('T'), t0 + 2s).empty());
}

}  // namespace torchup
