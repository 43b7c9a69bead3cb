#include <catch2/catch.hpp>

#include "tests/unit/launcher/running_agent.hpp"

namespace torchup {

using namespace agent_test;

TEST_CASE("a drain signal asks the workers once, and the second one ends the job", "[unit][agent]") {
  LaunchConfig config = two_workers();
  const int number = GENERATE(SIGTERM, SIGUSR1);
  config.drain_signals = {number};
  Running job{config};
  const auto first = job.agent.step(SignalArrived{number}, t0);
  REQUIRE(*find<DrainWorkers>(first) == DrainWorkers{number, false});
  REQUIRE_FALSE(find<SignalWorkers>(first));
  const auto second = job.agent.step(SignalArrived{number}, t0 + 500ms);
  REQUIRE_FALSE(find<DrainWorkers>(second));
  REQUIRE(find<SignalWorkers>(second)->number == SIGTERM);  // USR1 would not be an end for all
  REQUIRE(find_sent<Leave>(second)->exit_code == 128 + number);
  REQUIRE(find_sent<Leave>(second)->ends_job);
}

TEST_CASE("workers that do not hear a request to save get the signal in time", "[unit][agent]") {
  LaunchConfig config = two_workers(3);
  config.drain_signals = {SIGUSR1};
  Running job{config};
  static_cast<void>(job.agent.step(SignalArrived{SIGUSR1}, t0));
  REQUIRE(job.agent.deadline() == t0 + drain_patience);
  REQUIRE(deeds(job.agent.step(Wake{}, t0 + drain_patience - 1ns)) == 0);
  REQUIRE(*find<DrainWorkers>(job.agent.step(Wake{}, t0 + drain_patience)) == DrainWorkers{SIGUSR1, true});
  SECTION("one that ends by it is no failure, and no reason to start again") {
    const auto actions = job.agent.step(ended(0, -SIGUSR1), t0 + 2s);
    REQUIRE_FALSE(find_sent<WorkersFailed>(actions));
    REQUIRE(find_event<event::WorkerExited>(actions)->end == WorkerEnd::terminated);
    REQUIRE(find_sent<Leave>(actions)->exit_code == 128 + SIGUSR1);
    REQUIRE(find<SignalWorkers>(actions)->number == SIGTERM);
  }
  SECTION("one that saves is heard") {
    REQUIRE(find_sent<Leave>(job.agent.step(ended(0, 75), t0 + 2s))->exit_code == 75);
  }
}

TEST_CASE("a worker that is started after a request to save hears it like the others", "[unit][agent]") {
  LaunchConfig config = two_workers(3);
  config.drain_signals = {SIGUSR1};
  Agent agent{config, AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  static_cast<void>(agent.step(Begin{}, t0));
  static_cast<void>(agent.step(FromCoordinator{placed()}, t0));
  static_cast<void>(agent.step(WorkerStarted{LocalRank{0}, 100}, t0));
  REQUIRE(find<DrainWorkers>(agent.step(SignalArrived{SIGUSR1}, t0)));
  REQUIRE(find<DrainWorkers>(agent.step(Wake{}, t0 + drain_patience)));
  static_cast<void>(agent.step(WorkerStarted{LocalRank{1}, 101}, t0 + 60s));
  REQUIRE(agent.deadline() == t0 + 60s + drain_patience);
  REQUIRE(*find<DrainWorkers>(agent.step(Wake{}, t0 + 60s + drain_patience)) == DrainWorkers{SIGUSR1, true});
}

TEST_CASE("one that saves at once does not keep the others from hearing the request", "[unit][agent]") {
  LaunchConfig config = two_workers();
  config.drain_signals = {SIGUSR1};
  Agent agent{config, AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  static_cast<void>(agent.step(Begin{}, t0));
  static_cast<void>(agent.step(FromCoordinator{placed()}, t0));
  static_cast<void>(agent.step(WorkerStarted{LocalRank{0}, 100}, t0));
  const bool is_running = GENERATE(true, false);
  if (is_running) static_cast<void>(agent.step(WorkerStarted{LocalRank{1}, 101}, t0));
  REQUIRE(find<DrainWorkers>(agent.step(SignalArrived{SIGUSR1}, t0)));
  REQUIRE(find_sent<Leave>(agent.step(ended(0, 75), t0))->exit_code == 75);
  if (!is_running) REQUIRE_FALSE(find<SignalWorkers>(agent.step(WorkerStarted{LocalRank{1}, 101}, t0)));
  SECTION("until it has") {
    REQUIRE(*find<DrainWorkers>(agent.step(Wake{}, t0 + drain_patience)) == DrainWorkers{SIGUSR1, true});
  }
  SECTION("unless it is being stopped by then") {
    REQUIRE(find<SignalWorkers>(agent.step(SignalArrived{SIGTERM}, t0 + 1ms))->number == SIGTERM);
    REQUIRE_FALSE(find<DrainWorkers>(agent.step(Wake{}, t0 + drain_patience)));
  }
}

TEST_CASE("a request to save that comes while no worker runs ends the job, to be started again", "[unit][agent]") {
  LaunchConfig config = two_workers(3);
  config.drain_signals = {SIGUSR1};
  Agent agent{config, AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  SECTION("before the first round") {
    static_cast<void>(agent.step(Begin{}, t0));
    const auto actions = agent.step(SignalArrived{SIGUSR1}, t0);
    REQUIRE(find_sent<Leave>(actions)->exit_code == 75);
    REQUIRE(agent.deadline() == t0 + 2s);
    REQUIRE(find<Finish>(agent.step(Wake{}, t0 + 2s))->verdict.exit_code == 75);
  }
  SECTION("before one has been started") {
    static_cast<void>(agent.step(Begin{}, t0));
    static_cast<void>(agent.step(FromCoordinator{placed()}, t0));
    const auto actions = agent.step(SignalArrived{SIGUSR1}, t0);
    REQUIRE_FALSE(find<DrainWorkers>(actions));
    REQUIRE(find_sent<Leave>(actions)->exit_code == 75);
    REQUIRE(find<CancelStarts>(actions));
  }
  SECTION("during a restart, and the dying workers do not get it") {
    Running job{config};
    static_cast<void>(job.agent.step(ended(0, 1), t0));
    if (GENERATE(true, false)) static_cast<void>(job.agent.step(FromCoordinator{StopWorkers{}}, t0));
    const auto actions = job.agent.step(SignalArrived{SIGUSR1}, t0);
    REQUIRE(find_sent<Leave>(actions)->exit_code == 75);
    REQUIRE_FALSE(find<SignalWorkers>(actions));
    static_cast<void>(job.agent.step(ended(1, -SIGTERM), t0));
    REQUIRE_FALSE(find_sent<Join>(job.agent.step(DescendantsGone{}, t0)));
  }
  SECTION("and so does one whose workers fail before they have saved") {
    Running job{config};
    static_cast<void>(job.agent.step(SignalArrived{SIGUSR1}, t0));
    static_cast<void>(job.agent.step(ended(0, 1), t0));
    static_cast<void>(job.agent.step(ended(1, -SIGTERM), t0));
    static_cast<void>(job.agent.step(FromCoordinator{StopWorkers{}}, t0));
    const auto actions = job.agent.step(DescendantsGone{}, t0);
    REQUIRE_FALSE(find_sent<Join>(actions));
    REQUIRE(find_sent<Leave>(actions)->exit_code == 75);
  }
  SECTION("but not one whose workers have ended well") {
    Running job{config};
    static_cast<void>(job.agent.step(ended(0, 0), t0));
    static_cast<void>(job.agent.step(ended(1, 0), t0));
    REQUIRE(deeds(job.agent.step(SignalArrived{SIGUSR1}, t0)) == 0);
  }
}

TEST_CASE("a worker that has saved its state ends the job with 75, restarts or not", "[unit][agent]") {
  Running job{two_workers(3)};
  const auto actions = job.agent.step(ended(1, 75), t0);
  REQUIRE(find_event<event::WorkerExited>(actions)->end == WorkerEnd::succeeded);
  REQUIRE_FALSE(find_sent<WorkersFailed>(actions));
  const auto* leave = find_sent<Leave>(actions);
  REQUIRE(leave);
  REQUIRE(leave->ends_job);
  REQUIRE(leave->exit_code == 75);
  REQUIRE(leave->failures.empty());
  REQUIRE_FALSE(find_sent<Leave>(job.agent.step(ended(0, 75), t0 + 1s)));  // said once
}

TEST_CASE("workers that were asked to save and stop are not cut off by the first that has", "[unit][agent]") {
  const LaunchConfig config = two_workers();
  Running job{config};
  const bool own = GENERATE(true, false);
  if (own) {
    const auto actions = job.agent.step(ended(1, 75), t0);
    REQUIRE(find_sent<Leave>(actions)->stop_signal == 0);
    REQUIRE_FALSE(find<SignalWorkers>(actions));
  }
  const FromCoordinator end{End{Verdict{.exit_code = 75, .stop_signal = 0}}};
  REQUIRE_FALSE(find<SignalWorkers>(job.agent.step(end, t0)));
  const auto late = t0 + config.stop_grace;
  REQUIRE_FALSE(find<SignalWorkers>(job.agent.step(Wake{}, late - 1ms)));
  REQUIRE(find<SignalWorkers>(job.agent.step(Wake{}, late))->number == SIGTERM);
  REQUIRE_FALSE(find<KillWorkers>(job.agent.step(Wake{}, late + config.stop_grace - 1ms)));
  REQUIRE(find<KillWorkers>(job.agent.step(Wake{}, late + config.stop_grace)));
}

TEST_CASE("a signal reaches workers that were left to end by themselves", "[unit][agent]") {
  const LaunchConfig config = two_workers();
  Running job{config};
  job.agent.step(ended(1, 75), t0);
  const int number = GENERATE(SIGTERM, SIGINT);
  const auto first = job.agent.step(SignalArrived{number}, t0 + 1s);
  REQUIRE(find<SignalWorkers>(first)->number == number);
  REQUIRE_FALSE(find<KillWorkers>(first));
  REQUIRE_FALSE(find_sent<Leave>(first));  // it was said: the state is saved, 75
  const auto second = job.agent.step(SignalArrived{SIGINT}, t0 + 2s);
  REQUIRE(find<KillWorkers>(second));
}

}  // namespace torchup
