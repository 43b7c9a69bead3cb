#include <catch2/catch.hpp>

#include "tests/unit/launcher/running_agent.hpp"

namespace torchup {

using namespace agent_test;

namespace {

StepsSeen silent_since(TimePoint time) {
  WorkerProgress progress;
  progress.beats = 3;
  progress.step = 12;
  progress.ended_ns = std::chrono::nanoseconds{time.time_since_epoch()}.count();
  return {{{Rank{0}, LocalRank{0}, std::nullopt}, {Rank{1}, LocalRank{1}, progress}}};
}

}  // namespace

TEST_CASE("however short a worker may be silent, the looks at it have a pace", "[unit][agent]") {
  LaunchConfig config = two_workers(1);
  config.heartbeat_timeout = config.stuck_timeout = 1ns;
  const Running hasty{config};
  REQUIRE(hasty.agent.step_interval() == 100ms);
  REQUIRE(hasty.agent.state_interval() == 100ms);
  config.heartbeat_timeout = config.stuck_timeout = 2s;
  const Running usual{config};
  REQUIRE(usual.agent.step_interval() == 500ms);
  REQUIRE(usual.agent.state_interval() == 500ms);
  config.heartbeat_timeout = config.stuck_timeout = 0s;
  const Running none{config};
  REQUIRE(none.agent.step_interval() == 1s);
  REQUIRE(none.agent.state_interval() == 1s);
}

TEST_CASE("a worker that hangs is aborted, and killed where that does not end it", "[unit][agent]") {
  constexpr TimePoint begin{100s};
  LaunchConfig config = two_workers(1);
  config.heartbeat_timeout = 1s;
  Running job{config};
  TimePoint now = begin;
  for (; now <= begin + 1s; now += job.agent.step_interval()) {
    REQUIRE(job.agent.step(silent_since(begin), now).empty());
  }
  const auto hung = job.agent.step(silent_since(begin), now);
  REQUIRE(find<AbortWorkers>(hung)->workers == std::vector{LocalRank{1}});
  REQUIRE(find_event<event::WorkersHung>(hung)->ranks == std::vector{Rank{1}});
  SECTION("its failure says so") {
    const auto died = job.agent.step(ended(1, -SIGABRT), now);
    REQUIRE_THAT(find_sent<WorkersFailed>(died)->failures.front().message,
                 Catch::StartsWith("rank 1 ended no step for"));
    REQUIRE(find_event<event::WorkerExited>(died)->end == WorkerEnd::failed);
  }
  SECTION("whatever its handler of SIGABRT makes of it") {
    const auto died = job.agent.step(ended(1, GENERATE(0, 75)), now);
    REQUIRE(find_sent<WorkersFailed>(died)->failures.front().rank == Rank{1});
    REQUIRE(find_event<event::WorkerExited>(died)->end == WorkerEnd::failed);
    REQUIRE_FALSE(find_event<event::StateSaved>(died));
  }
  SECTION("after 10 s") {
    REQUIRE_FALSE(find<KillWorkers>(job.agent.step(Wake{}, now + abort_patience - 1ns)));
    REQUIRE(find<KillWorkers>(job.agent.step(Wake{}, now + abort_patience))->workers == std::vector{LocalRank{1}});
    const TimePoint killed = now + abort_patience;
    SECTION("and ends the job when not even that ends it: the others would wait for ever") {
      REQUIRE(job.agent.deadline() == killed + 10s);
      REQUIRE(job.agent.step(Wake{}, killed + 10s - 1ns).empty());
      const auto over = job.agent.step(Wake{}, killed + 10s);
      REQUIRE(find_sent<Leave>(over)->exit_code == 1);
      REQUIRE(find_sent<Leave>(over)->reason == "rank 1 hangs, and not even SIGKILL ends it");
      REQUIRE(find<SignalWorkers>(over)->workers == both);
    }
    SECTION("and no more when that has ended it") {
      static_cast<void>(job.agent.step(ended(1, -SIGKILL), killed + 1s));
      REQUIRE_FALSE(find_sent<Leave>(job.agent.step(Wake{}, killed + 10s)));
    }
  }
}

TEST_CASE("nobody hangs who was stopped with us or saves for the last time", "[unit][agent]") {
  constexpr TimePoint begin{100s};
  LaunchConfig config = two_workers();
  config.heartbeat_timeout = 1s;
  config.drain_signals = {SIGUSR2};
  Running job{config};
  REQUIRE(job.agent.step(silent_since(begin), begin).empty());
  static_cast<void>(job.agent.step(SignalArrived{GENERATE(SIGTSTP, SIGUSR2)}, begin));
  for (TimePoint now = begin; now < begin + 60s; now += job.agent.step_interval()) {
    REQUIRE_FALSE(find<AbortWorkers>(job.agent.step(silent_since(begin), now)));
  }
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
