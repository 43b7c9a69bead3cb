#include <catch2/catch.hpp>

#include "tests/unit/launcher/running_agent.hpp"

namespace torchup {

using namespace agent_test;

TEST_CASE("however short a worker may sleep, the looks at it have a pace", "[unit][agent]") {
  LaunchConfig config = two_workers(1);
  config.stuck_timeout = 1ns;
  REQUIRE(Running{config}.agent.state_interval() == 100ms);
  config.stuck_timeout = 2s;
  REQUIRE(Running{config}.agent.state_interval() == 500ms);
  config.stuck_timeout = 0s;
  REQUIRE(Running{config}.agent.state_interval() == 1s);
}

TEST_CASE("a worker whose watchdog timer ran out has failed, whatever its exit code", "[unit][agent]") {
  Running job{two_workers(1)};
  const auto expired = job.agent.step(TimerExpired{LocalRank{1}, 555, "step", SIGTERM}, t0);
  REQUIRE(find_event<event::TimerExpired>(expired)->worker.pid == 101);
  const auto actions = job.agent.step(ended(1, GENERATE(0, 75, -SIGTERM)), t0);
  REQUIRE(find_event<event::WorkerExited>(actions)->end == WorkerEnd::failed);
  REQUIRE_THAT(find_sent<WorkersFailed>(actions)->failures.front().message,
               Catch::Contains("did not come out of 'step'"));
  REQUIRE(find<SignalWorkers>(actions)->workers == std::vector{LocalRank{0}});
}

TEST_CASE("a worker that loses the others when they have saved is no failure", "[unit][agent]") {
  Running job;
  static_cast<void>(job.agent.step(ended(1, 75), t0));
  const auto actions = job.agent.step(ended(0, 1), t0);
  REQUIRE(find_event<event::WorkerExited>(actions)->end == WorkerEnd::terminated);
  REQUIRE_FALSE(find_sent<WorkersFailed>(actions));
  REQUIRE(find<SweepDescendants>(actions)->patience == leftover_patience);  // both ended by themselves
}

TEST_CASE("workers that nobody told to stop are killed without a word about signal 0", "[unit][agent]") {
  Running job;
  static_cast<void>(job.agent.step(ended(1, 75), t0));
  Verdict verdict_now{.exit_code = 130, .stop_signal = 0, .kill_now = true};
  const auto actions = job.agent.step(FromCoordinator{End{verdict_now}}, t0);
  REQUIRE(find<KillWorkers>(actions));
  const auto* killed = find_event<event::WorkerKilled>(actions);
  REQUIRE_THAT(to_text(EventBody{*killed})->text, !Catch::Contains("via"));
}

TEST_CASE("a start that does not come back is named as such", "[unit][agent]") {
  Agent agent{two_workers(), AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  static_cast<void>(agent.step(Begin{}, t0));
  static_cast<void>(agent.step(FromCoordinator{placed()}, t0));
  static_cast<void>(agent.step(WorkerStarted{LocalRank{0}, 100}, t0));
  static_cast<void>(agent.step(SignalArrived{SIGTERM}, t0));
  static_cast<void>(agent.step(ended(0, -SIGTERM), t0));
  static_cast<void>(agent.step(Wake{}, t0 + 30s));
  const auto given_up = agent.step(Wake{}, t0 + 40s);
  const auto* abandoned = find_event<event::WorkerAbandoned>(given_up);
  REQUIRE(abandoned);
  REQUIRE_THAT(to_text(EventBody{*abandoned})->text, Catch::StartsWith("the start of rank 1 has not come back"));
  REQUIRE(*find<KillWorkers>(agent.step(WorkerStarted{LocalRank{1}, 101}, t0 + 50s)) ==
          KillWorkers{{LocalRank{1}}, true});
}

TEST_CASE("a worker that nothing can kill ends the job with 1", "[unit][agent]") {
  Running job;
  const int code = GENERATE(143, 0, 75, 67);
  static_cast<void>(
      job.agent.step(FromCoordinator{End{{.exit_code = code, .reason = "over", .stop_signal = SIGTERM}}}, t0));
  static_cast<void>(job.agent.step(ended(0, -SIGTERM), t0));
  const auto killed = job.agent.step(Wake{}, t0 + 30s);
  REQUIRE(*find<KillWorkers>(killed) == KillWorkers{{LocalRank{1}}, true});
  const auto given_up = job.agent.step(Wake{}, t0 + 40s);
  REQUIRE(find_event<event::WorkerAbandoned>(given_up)->worker.pid == 101);
  REQUIRE(find<SweepDescendants>(given_up));
  const auto over = job.agent.step(DescendantsGone{}, t0 + 40s);
  const Verdict& verdict = find<Finish>(over)->verdict;
  // But where the state was saved, or it is told already that all is not well.
  const bool changed = code == 143 || code == 0;
  REQUIRE(verdict.exit_code == (changed ? 1 : code));
  REQUIRE(verdict.reason == (changed ? "over; a worker cannot be killed" : "over"));
}

TEST_CASE("a restart is an event with its reason and what is left", "[unit][agent]") {
  Running job{two_workers(3)};
  static_cast<void>(job.agent.step(ended(0, 9), t0));
  static_cast<void>(job.agent.step(ended(1, -SIGTERM), t0));
  StopWorkers stop;
  stop.cause = GENERATE(StopCause::worker_failure, StopCause::membership_change);
  stop.reason = "rank 0 failed";
  static_cast<void>(job.agent.step(FromCoordinator{stop}, t0));
  const auto again = job.agent.step(DescendantsGone{}, t0);
  REQUIRE(find_event<event::AttemptEnded>(again)->reason == "rank 0 failed with exit code 9");
  const auto* restarting = find_event<event::Restarting>(again);
  REQUIRE((restarting != nullptr) == (stop.cause == StopCause::worker_failure));
  if (restarting) REQUIRE(*restarting == event::Restarting{2, "rank 0 failed", 1, 0, 2});
}

}  // namespace torchup
