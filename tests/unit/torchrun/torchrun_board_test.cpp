#include "rendezvous/core/torchrun/torchrun_board.hpp"

#include <catch2/catch.hpp>

#include "tests/support/torchrun_keys.hpp"

namespace torchup {
namespace {

using namespace std::chrono_literals;

const UtcTime utc0 = std::chrono::sys_days{std::chrono::year{2026} / 1 / 1};

/// The state of a round that runs, in which a torchrun agent shows its heartbeats.
struct Running {
  explicit Running(Duration lease) {
    JobTerms terms;
    terms.lease = lease;
    board.adopt(terms);
    beat(0s);
  }
  void beat(std::chrono::milliseconds at) {
    TorchrunState state;
    state.complete = true;
    state.participants = {{TorchrunNode{"a", 1, 0}, 0}};
    state.last_heartbeats = {{TorchrunNode{"a", 1, 0}, utc0 + at}};
    keys.put(state);
    REQUIRE(board.read(keys, utc0 + at, 0).has_value());
  }
  [[nodiscard]] Duration pace() const { return board.terms().keep_alive_interval; }
  [[nodiscard]] Duration dead_after() const { return board.terms().dead_after; }

  Keys keys;
  TorchrunBoard board{RunId{"job"}};
};

}  // namespace

TEST_CASE("our heartbeats come as often as torchrun's agents may demand it", "[unit][torchrun]") {
  SECTION("each second until their interval has shown") {
    Running job{GENERATE(1s, 10s, 3600s)};
    REQUIRE(job.pace() == torchrun_interval_min);
  }
  SECTION("then no later than they themselves") {
    Running job{60s};
    const auto interval = GENERATE(1s, 2s, 5s, 8s, 10s, 3600s);
    job.beat(interval);
    REQUIRE(job.pace() <= interval);
    REQUIRE(job.pace() >= torchrun_interval_min);
    REQUIRE(job.pace() <= torchrun_interval_default);
    REQUIRE(job.pace() * torchrun_attempts_default <= job.dead_after());
  }
  SECTION("an interval may show twice as long as it is") {
    Running job{60s};
    job.beat(6s);
    REQUIRE(job.pace() == 3s);
  }
  SECTION("nor later than our own lease allows") {
    Running job{6s};
    job.beat(20s);
    REQUIRE(job.pace() == 2s);
  }
}

TEST_CASE("nobody is taken for dead sooner than torchrun's agents do it", "[unit][torchrun]") {
  Running job{4s};
  REQUIRE(job.dead_after() == torchrun_interval_default * torchrun_attempts_default);
  job.beat(20s);
  REQUIRE(job.dead_after() == 60s);
  job.beat(22s);
  REQUIRE(job.dead_after() == 6s);
  job.beat(22500ms);  // no interval of theirs: it is of another's hand
  REQUIRE(job.dead_after() == 6s);
  job.beat(23500ms);
  REQUIRE(job.dead_after() == 4s);  // our own lease
}

}  // namespace torchup
