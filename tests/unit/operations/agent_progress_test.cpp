#include <catch2/catch.hpp>

#include "tests/unit/launcher/running_agent.hpp"

namespace torchup {

using namespace agent_test;

TEST_CASE("an agent records how far its workers are, again and again", "[unit][agent][steps]") {
  Running job;
  CHECK_FALSE(find_event<event::Progress>(job.agent.step(steps(3, t0 + 5s), t0 + 10s)));
  const auto actions = job.agent.step(steps(9, t0 + 29s), t0 + 30s);
  const auto* const told = find_event<event::Progress>(actions);
  REQUIRE(told);
  CHECK((told->step_min == 9 && told->step_max == 9));
  CHECK(told->ranks.at(1) == RankSteps{Rank{1}, {9, 3, 9, 5'000'000, 29'000'000, 0}});
  CHECK_FALSE(find_event<event::Progress>(job.agent.step(steps(9, t0 + 29s), t0 + 31s)));
}

TEST_CASE("a worker's exit tells of its steps, and the attempt's end of all", "[unit][agent][steps]") {
  Running job{two_workers(1)};
  WorkerEnded gone = ended(0, 1);
  gone.progress =
      WorkerProgress{.beats = 4, .step = 8, .ended_ns = 9'000'000'000, .first_step = 5, .first_ns = 2'000'000'000};
  const auto actions = job.agent.step(gone, t0 + 10s);
  const WorkerSteps expected{4, 5, 8, 2'000'000, 9'000'000, 0};
  CHECK(find_event<event::WorkerExited>(actions)->steps == expected);
  CHECK_FALSE(find_event<event::WorkerExited>(job.agent.step(ended(1, -SIGTERM), t0 + 11s))->steps);
  const auto over = job.agent.step(DescendantsGone{}, t0 + 12s);
  const auto* const told = find_event<event::Progress>(over);
  REQUIRE(told);
  CHECK(told->ranks == std::vector<RankSteps>{{Rank{0}, expected}});
  CHECK(find_event<event::AttemptEnded>(over));
  // Nothing of that is of the next attempt.
  static_cast<void>(job.agent.step(FromCoordinator{StopWorkers{Round{0}, StopCause::worker_failure, "x"}}, t0 + 12s));
  static_cast<void>(job.agent.step(FromCoordinator{placed(1, 1)}, t0 + 13s));
  job.start();
  CHECK_FALSE(find_event<event::WorkerExited>(job.agent.step(ended(0, 0), t0 + 14s))->steps);
}

TEST_CASE("a round that ends for a change of the members is told of as such", "[unit][agent][steps]") {
  Running job{two_workers(1)};
  const bool change = GENERATE(false, true);
  const StopCause cause = change ? StopCause::membership_change : StopCause::worker_failure;
  const auto actions = job.agent.step(FromCoordinator{StopWorkers{Round{0}, cause, "node b came"}}, t0 + 1s);
  const auto* const told = find_event<event::MembershipChanged>(actions);
  REQUIRE((told != nullptr) == change);
  if (change) CHECK(told->reason == "node b came");
}

}  // namespace torchup
