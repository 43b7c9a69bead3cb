// A round that ends by plan: workers save first, and that is no failure.
#include <catch2/catch.hpp>

#include "tests/unit/launcher/running_agent.hpp"

namespace torchup {

using namespace agent_test;

namespace {

StopWorkers planned_stop(bool stands_by = false) {
  return {Round{0}, StopCause::membership_change, "restarted by user ada (uid 1000)", true, stands_by};
}

/// An agent whose workers have ended a step.
struct Stepping : Running {
  explicit Stepping(const LaunchConfig& config = two_workers()) : Running{config} {
    static_cast<void>(agent.step(steps(3, t0), t0 + 1s));
  }
  auto hear(CoordinatorMessage message, TimePoint now = t0 + 2s) {
    return agent.step(FromCoordinator{std::move(message)}, now);
  }
};

}  // namespace

TEST_CASE("a planned stop asks workers to save, and signals nobody who does", "[unit][agent]") {
  LaunchConfig config = two_workers(3);
  if (GENERATE(true, false)) config.drain_signals = {SIGUSR1};
  const int number = config.drain_signals.empty() ? 0 : SIGUSR1;
  Stepping job{config};
  const auto actions = job.hear(planned_stop());
  REQUIRE(*find<DrainWorkers>(actions) == DrainWorkers{number, false});
  REQUIRE_FALSE(find<SignalWorkers>(actions));
  REQUIRE(find_event<event::Stopping>(actions)->reason == "restarted by user ada (uid 1000)");
  SECTION("whatever they end with is no failure, no end of the job, and the node joins again") {
    const int code = GENERATE(0, 75, 1, -SIGABRT);
    const auto first = job.agent.step(ended(0, code), t0 + 3s);
    const auto second = job.agent.step(ended(1, 0), t0 + 3s);
    const auto swept = job.agent.step(DescendantsGone{}, t0 + 3s);
    for (const auto* each : {&first, &second, &swept}) {
      REQUIRE_FALSE(find_sent<WorkersFailed>(*each));
      REQUIRE_FALSE(find_sent<Leave>(*each));
      REQUIRE_FALSE(find<SignalWorkers>(*each));
    }
    REQUIRE(find_sent<Join>(swept));
  }
  SECTION("who does not end within the grace gets TERM, and then KILL") {
    const TimePoint late = t0 + 2s + config.stop_grace;
    REQUIRE(job.agent.deadline() == late);
    REQUIRE(deeds(job.agent.step(Wake{}, late - 1ns)) == 0);
    REQUIRE(find<SignalWorkers>(job.agent.step(Wake{}, late))->number == SIGTERM);
    REQUIRE(find<KillWorkers>(job.agent.step(Wake{}, late + config.stop_grace)));
  }
  SECTION("a user who has no time ends it as any other") {
    REQUIRE(find_sent<Leave>(job.agent.step(SignalArrived{SIGINT}, t0 + 3s))->exit_code == 130);
  }
}

TEST_CASE("before a planned stop, and no other, it is looked who has ended a step", "[unit][agent]") {
  CHECK(is_planned_stop(CoordinatorMessage{planned_stop()}));
  CHECK_FALSE(is_planned_stop(CoordinatorMessage{StopWorkers{Round{0}, StopCause::worker_failure, "rank 1 failed"}}));
  Verdict verdict;
  CHECK_FALSE(is_planned_stop(CoordinatorMessage{End{verdict}}));
  verdict.save = true;
  CHECK(is_planned_stop(CoordinatorMessage{End{verdict}}));
  CHECK_FALSE(is_planned_stop(CoordinatorMessage{Waiting{}}));
}

TEST_CASE("where no worker has ended a step, a planned stop signals at once", "[unit][agent]") {
  Running job;
  SECTION("none has said anything") {}
  SECTION("all report, and none has ended one") {
    StepsSeen seen = steps(0, t0);
    for (StepSample& sample : seen.samples) sample.progress.reset();
    static_cast<void>(job.agent.step(seen, t0 + 1s));
  }
  const auto actions = job.agent.step(FromCoordinator{planned_stop()}, t0 + 2s);
  REQUIRE_FALSE(find<DrainWorkers>(actions));
  REQUIRE(find<SignalWorkers>(actions)->number == SIGTERM);
}

TEST_CASE("steps of the round before are none of this one", "[unit][agent]") {
  Stepping job{two_workers(3)};
  static_cast<void>(job.hear(planned_stop()));
  for (const int rank : {0, 1}) static_cast<void>(job.agent.step(ended(rank, 0), t0 + 3s));
  static_cast<void>(job.agent.step(DescendantsGone{}, t0 + 3s));
  static_cast<void>(job.hear(placed(1), t0 + 4s));
  for (const int rank : {0, 1}) {
    static_cast<void>(job.agent.step(WorkerStarted{LocalRank{rank}, 200 + rank}, t0 + 4s));
  }
  StopWorkers again = planned_stop();
  again.round = Round{1};
  REQUIRE(find<SignalWorkers>(job.hear(again, t0 + 5s)));
}

TEST_CASE("workers that saved before the order came are no end of the job", "[unit][agent]") {
  Stepping job{two_workers(3)};
  REQUIRE(find_sent<Leave>(job.agent.step(ended(0, 75), t0 + 2s))->saved);
  SECTION("the planned stop that crossed it makes that void") {
    REQUIRE_FALSE(find<SignalWorkers>(job.hear(planned_stop())));
    static_cast<void>(job.agent.step(ended(1, 75), t0 + 3s));
    REQUIRE(find_sent<Join>(job.agent.step(DescendantsGone{}, t0 + 3s)));
  }
  SECTION("also where nothing of the round is left") {
    static_cast<void>(job.agent.step(ended(1, 75), t0 + 2s));
    static_cast<void>(job.agent.step(DescendantsGone{}, t0 + 2s));
    REQUIRE(find_sent<Join>(job.hear(planned_stop(), t0 + 3s)));
    REQUIRE(deeds(job.agent.step(Wake{}, t0 + 60s)) == 0);  // it waits for a place, and for no last word
  }
  SECTION("another stop does not, nor one of another round") {
    StopWorkers other = planned_stop();
    if (GENERATE(true, false)) {
      other.save = false;
    } else {
      other.round = Round{7};
    }
    static_cast<void>(job.hear(other));
    static_cast<void>(job.agent.step(ended(1, 75), t0 + 3s));
    REQUIRE_FALSE(find_sent<Join>(job.agent.step(DescendantsGone{}, t0 + 3s)));
  }
}

TEST_CASE("a job that is to save and end asks its workers, too", "[unit][agent]") {
  Verdict wanted{.exit_code = 75, .reason = "stopped by user ada (uid 1000)", .stop_signal = 0, .save = true};
  SECTION("those that have ended a step") {
    Stepping job;
    const auto actions = job.hear(End{wanted});
    REQUIRE(find<DrainWorkers>(actions));
    REQUIRE_FALSE(find<SignalWorkers>(actions));
    for (const int rank : {0, 1}) static_cast<void>(job.agent.step(ended(rank, 0), t0 + 3s));
    REQUIRE(find<Finish>(job.agent.step(DescendantsGone{}, t0 + 3s))->verdict.exit_code == 75);
  }
  SECTION("others get the signal") {
    Running job;
    REQUIRE(find<SignalWorkers>(job.agent.step(FromCoordinator{End{wanted}}, t0 + 2s))->number == SIGTERM);
  }
}

TEST_CASE("workers that can outlive the round are told of a planned end instead", "[unit][agent]") {
  Stepping job{two_workers(3)};
  for (const int rank : {0, 1}) static_cast<void>(job.agent.step(WorkerSaid{LocalRank{rank}, WorkerStays{}}, t0 + 1s));
  SECTION("where a place may follow") {
    const auto actions = job.hear(planned_stop());
    REQUIRE(find<EndRound>(actions)->workers == both);
    REQUIRE_FALSE(find<DrainWorkers>(actions));
    REQUIRE_FALSE(find<SignalWorkers>(actions));
  }
  SECTION("a drained node keeps none") {
    const auto actions = job.hear(planned_stop(true));
    REQUIRE(find<DrainWorkers>(actions));
    REQUIRE_FALSE(find<EndRound>(actions));
  }
}

}  // namespace torchup
