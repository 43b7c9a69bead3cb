#include "rendezvous/core/torchrun_wire/torchrun_fence.hpp"

#include <catch2/catch.hpp>

namespace torchup {

using namespace std::chrono_literals;

TEST_CASE("workers stop at nine tenths of the lease without an answer", "[unit][torchrun]") {
  const TimePoint t0{};
  TorchrunFence fence{"node0:29400"};
  Join join;
  join.terms.lease = 10s;
  fence.said(join);
  fence.answered(t0);
  REQUIRE_FALSE(fence.deadline());  // no worker runs
  REQUIRE_FALSE(fence.due(t0 + 1h));
  fence.told(Placed{{.round = Round{3}}});
  REQUIRE(fence.deadline() == t0 + 9s);
  REQUIRE_FALSE(fence.due(t0 + 9s - 1ns));

  SECTION("once") {
    const auto stop = fence.due(t0 + 9s);
    REQUIRE(stop);
    REQUIRE(stop->round == Round{3});
    REQUIRE(stop->cause == StopCause::fenced);
    REQUIRE(stop->reason == "torchrun's rendezvous at node0:29400 is out of reach");
    REQUIRE_FALSE(fence.due(t0 + 1h));
  }
  SECTION("an answer counts from the moment of its question") {
    fence.answered(t0 + 8s);
    REQUIRE_FALSE(fence.due(t0 + 17s - 1ns));
    REQUIRE(fence.due(t0 + 17s));
  }
  SECTION("nobody is stopped who was told to stop, or to end") {
    if (GENERATE(true, false)) {
      fence.told(StopWorkers{Round{3}});
    } else {
      fence.told(End{});
    }
    REQUIRE_FALSE(fence.due(t0 + 1h));
  }
  SECTION("a node that joins anew has no workers") {
    fence.said(join);
    REQUIRE_FALSE(fence.due(t0 + 1h));
  }
}

}  // namespace torchup
