#include <catch2/catch.hpp>

#include "launcher/core/text/signals.hpp"
#include "tests/unit/launcher/running_agent.hpp"

namespace torchup {

using namespace agent_test;

TEST_CASE("signals", "[unit][agent]") {
  Running job;
  SECTION("one that is passed on changes nothing else") {
    REQUIRE(job.agent.step(SignalArrived{SIGUSR1}, t0).empty());
    REQUIRE(job.agent.deadline() == t0 + signal_copy_window);
    const auto actions = job.agent.step(Wake{}, t0 + signal_copy_window);
    REQUIRE(deeds(actions) == 1);
    REQUIRE(find<SignalWorkers>(actions)->number == SIGUSR1);
    REQUIRE(!find<SignalWorkers>(actions)->ends);
    REQUIRE(!job.agent.deadline());
  }
  SECTION("the first Ctrl-C is forwarded, the second kills, and the code is 130") {
    const auto first = job.agent.step(SignalArrived{SIGINT}, t0);
    REQUIRE(find<SignalWorkers>(first)->number == SIGINT);
    REQUIRE(find_sent<Leave>(first)->exit_code == 130);
    REQUIRE(find_sent<Leave>(first)->ends_job);
    Verdict echoed = verdict(130);
    echoed.stop_signal = SIGINT;
    REQUIRE(!find<SignalWorkers>(job.agent.step(FromCoordinator{End{echoed}}, t0)));  // not a second time
    const auto second = job.agent.step(SignalArrived{SIGINT}, t0 + 1s);
    REQUIRE(find<KillWorkers>(second));
    REQUIRE(find_sent<Leave>(second)->kill_now);
    static_cast<void>(job.agent.step(ended(0, -SIGKILL), t0 + 1s));
    static_cast<void>(job.agent.step(ended(1, -SIGKILL), t0 + 1s));
    REQUIRE(find<Finish>(job.agent.step(DescendantsGone{}, t0 + 1s))->verdict.exit_code == 130);
  }
  SECTION("TERM is forwarded once; the second one kills everywhere, and the first says so") {
    const auto first = job.agent.step(SignalArrived{SIGTERM}, t0);
    REQUIRE(find<SignalWorkers>(first)->number == SIGTERM);
    REQUIRE(find_event<event::SignalReceived>(first)->consequence == "shutting down workers (SIGTERM again to force)");
    const auto second = job.agent.step(SignalArrived{SIGTERM}, t0 + 1s);
    REQUIRE_FALSE(find<SignalWorkers>(second));
    REQUIRE(find<KillWorkers>(second)->workers == both);
    REQUIRE(find_sent<Leave>(second)->kill_now);
  }
  SECTION("HUP comes several times when a terminal goes away, and TERM after it: nobody is in a hurry") {
    REQUIRE(find<SignalWorkers>(job.agent.step(SignalArrived{SIGHUP}, t0))->number == SIGHUP);
    REQUIRE(deeds(job.agent.step(SignalArrived{SIGHUP}, t0 + 1s)) == 0);
    REQUIRE(deeds(job.agent.step(SignalArrived{SIGTERM}, t0 + 2s)) == 0);
    REQUIRE(find<KillWorkers>(job.agent.step(SignalArrived{SIGTERM}, t0 + 3s)));
  }
  SECTION("one that comes while failed siblings are stopped ends the job: no further attempt") {
    static_cast<void>(job.agent.step(ended(0, 1), t0));
    REQUIRE(find_sent<Leave>(job.agent.step(SignalArrived{SIGTERM}, t0))->exit_code == 143);
    static_cast<void>(job.agent.step(FromCoordinator{StopWorkers{}}, t0));
    static_cast<void>(job.agent.step(ended(1, -SIGTERM), t0));
    REQUIRE(!find_sent<Join>(job.agent.step(DescendantsGone{}, t0)));
    REQUIRE(find<Finish>(job.agent.step(FromCoordinator{End{verdict(143)}}, t0))->verdict.exit_code == 143);
  }
  SECTION("a coordinator that says nothing more is not waited for without end") {
    static_cast<void>(job.agent.step(SignalArrived{SIGTERM}, t0));
    static_cast<void>(job.agent.step(ended(0, 0), t0));
    static_cast<void>(job.agent.step(ended(1, 0), t0));
    static_cast<void>(job.agent.step(DescendantsGone{}, t0));
    REQUIRE(job.agent.deadline() == t0 + 2s);
    REQUIRE(find<Finish>(job.agent.step(Wake{}, t0 + 2s))->verdict.exit_code == 143);
  }
}

TEST_CASE("one signal to both processes of the launcher is one", "[unit][agent]") {
  const int number = GENERATE(SIGINT, SIGTERM);
  const bool outer_first = GENERATE(true, false);
  const auto kills = [number, outer_first](Duration later, bool other_way) {
    Running job;
    REQUIRE(find<SignalWorkers>(job.agent.step(SignalArrived{number, outer_first}, t0)));
    return find<KillWorkers>(job.agent.step(SignalArrived{number, outer_first != other_way}, t0 + later)) != nullptr;
  };
  SECTION("whichever way the copies take, within 20 ms") {
    for (const bool other_way : {true, false}) {
      REQUIRE_FALSE(kills(0ms, other_way));
      REQUIRE_FALSE(kills(signal_copy_window, other_way));
    }
    REQUIRE(kills(signal_copy_window + 1ns, false));
  }
  SECTION("a copy by the other way may be late, where the machine is busy") {
    REQUIRE_FALSE(kills(signal_other_way_window, true));
    REQUIRE(kills(signal_other_way_window + 1ns, true));
  }
  SECTION("each has one late copy: two keys struck in both processes are two") {
    Running job;
    static_cast<void>(job.agent.step(SignalArrived{number, true}, t0));
    REQUIRE(deeds(job.agent.step(SignalArrived{number, false}, t0 + 5ms)) == 0);
    REQUIRE(find<KillWorkers>(job.agent.step(SignalArrived{number, true}, t0 + 300ms)));
    REQUIRE(job.agent.step(SignalArrived{number, false}, t0 + 305ms).empty());
  }
}

TEST_CASE("a copy of a signal that drains changes nothing", "[unit][agent]") {
  LaunchConfig config = two_workers();
  config.drain_signals = {SIGTERM};
  Running job{config};
  REQUIRE(find<DrainWorkers>(job.agent.step(SignalArrived{SIGTERM, false}, t0)));
  REQUIRE(job.agent.step(SignalArrived{SIGTERM, true}, t0 + 20ms).empty());
}

TEST_CASE("what was sent to all processes of the job is not passed on to workers that have it", "[unit][agent]") {
  Running job;
  if (GENERATE(true, false)) {
    const auto actions = job.agent.step(SignalArrived{SIGUSR1, false}, t0);
    REQUIRE(deeds(actions) == 0);
    REQUIRE(find_event<event::SignalReceived>(actions)->use == SignalUse::forwards);
    REQUIRE(job.agent.step(SignalArrived{SIGUSR1, true}, t0 + 5ms).empty());
  } else {
    REQUIRE(job.agent.step(SignalArrived{SIGUSR1, true}, t0).empty());
    const auto actions = job.agent.step(SignalArrived{SIGUSR1, false}, t0 + signal_copy_window - 1ns);
    REQUIRE(deeds(actions) == 0);
    REQUIRE(find_event<event::SignalReceived>(actions)->use == SignalUse::forwards);
  }
  const auto later = t0 + 2s;
  REQUIRE(deeds(job.agent.step(Wake{}, later)) == 0);
  // The next one may be for us alone, and another number is another signal.
  const int number = GENERATE(SIGUSR1, SIGUSR2);
  static_cast<void>(job.agent.step(SignalArrived{number, true}, later));
  REQUIRE(find<SignalWorkers>(job.agent.step(Wake{}, later + signal_copy_window))->number == number);
}

TEST_CASE("Ctrl-Z stops the workers, also those that are being started", "[unit][agent]") {
  Agent agent{two_workers(), AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  static_cast<void>(agent.step(Begin{}, t0));
  static_cast<void>(agent.step(FromCoordinator{placed()}, t0));
  static_cast<void>(agent.step(WorkerStarted{LocalRank{0}, 100}, t0));
  const auto stopped = agent.step(SignalArrived{SIGTSTP}, t0);
  REQUIRE(*find<SignalWorkers>(stopped) == SignalWorkers{SIGSTOP, false, {LocalRank{0}}});
  const bool resumed_before = GENERATE(true, false);
  if (resumed_before) static_cast<void>(agent.step(SignalArrived{SIGCONT}, t0 + 1s));
  const auto started = agent.step(WorkerStarted{LocalRank{1}, 101}, t0 + 2s);
  REQUIRE((find<SignalWorkers>(started) == nullptr) == resumed_before);
  const auto resumed = agent.step(SignalArrived{SIGCONT}, t0 + 3s);
  REQUIRE(*find<SignalWorkers>(resumed) == SignalWorkers{SIGCONT, false, both});
}

TEST_CASE("a signal shortens the wait for what workers have left behind, the job's good end does not",
          "[unit][agent]") {
  Running job;
  static_cast<void>(job.agent.step(ended(0, 0), t0));
  REQUIRE(find<SweepDescendants>(job.agent.step(ended(1, 0), t0))->patience > 0s);
  REQUIRE_FALSE(find<SweepDescendants>(job.agent.step(FromCoordinator{End{verdict(0)}}, t0)));
  const auto first = job.agent.step(SignalArrived{SIGTERM}, t0);
  REQUIRE(*find<SweepDescendants>(first) == SweepDescendants{0s, two_workers().stop_grace});
  REQUIRE(*find<SweepDescendants>(job.agent.step(SignalArrived{SIGTERM}, t0 + 1s)) == SweepDescendants{});
}

TEST_CASE("a signal that comes while a worker is being started reaches it", "[unit][agent]") {
  Agent agent{two_workers(), AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  static_cast<void>(agent.step(Begin{}, t0));
  static_cast<void>(agent.step(FromCoordinator{placed()}, t0));
  SECTION("one that is passed on, once") {
    REQUIRE(deeds(agent.step(SignalArrived{SIGUSR1}, t0)) == 0);
    const auto started = agent.step(WorkerStarted{LocalRank{0}, 100}, t0 + 1s);
    REQUIRE(*find<SignalWorkers>(started) == SignalWorkers{SIGUSR1, false, {LocalRank{0}}});
  }
  SECTION("one that ends the job, and nobody else is started") {
    REQUIRE(find<CancelStarts>(agent.step(SignalArrived{SIGINT}, t0)));
    const auto started = agent.step(WorkerStarted{LocalRank{0}, 100}, t0 + 1s);
    REQUIRE(*find<SignalWorkers>(started) == SignalWorkers{SIGINT, true, {LocalRank{0}}});
  }
  SECTION("a kill") {
    static_cast<void>(agent.step(SignalArrived{SIGINT}, t0));
    const auto killed = agent.step(SignalArrived{SIGINT}, t0 + 1s);
    REQUIRE(*find<CancelStarts>(killed) == CancelStarts{.killed = true});
    REQUIRE(*find<KillWorkers>(agent.step(WorkerStarted{LocalRank{0}, 100}, t0 + 2s)) ==
            KillWorkers{{LocalRank{0}}, true});
  }
}

TEST_CASE("a node that its front does without leaves, whatever signals mean to the job", "[unit][agent]") {
  LaunchConfig config = two_workers();
  config.terms.max_nodes = GENERATE(1, 2);
  config.drain_signals = {SIGTERM};
  config.end_signals_listed = true;
  Running job{config};
  SECTION("its workers have the grace, and the others go on") {
    const auto actions = job.agent.step(SignalArrived{dismissal_signal}, t0);
    REQUIRE_FALSE(find_sent<Leave>(actions)->ends_job);
    REQUIRE(find_sent<Leave>(actions)->exit_code == 143);
    REQUIRE(*find<SignalWorkers>(actions) == SignalWorkers{SIGTERM, true, both});
    REQUIRE_FALSE(find<DrainWorkers>(actions));
    REQUIRE(job.agent.deadline() == t0 + config.stop_grace);
    REQUIRE(job.agent.step(SignalArrived{dismissal_signal}, t0 + 1s).empty());
  }
  SECTION("but not while its workers save: with that the job ends") {
    static_cast<void>(job.agent.step(SignalArrived{SIGTERM}, t0));
    REQUIRE(job.agent.step(SignalArrived{dismissal_signal}, t0).empty());
    REQUIRE(find_sent<Leave>(job.agent.step(ended(0, 75), t0))->exit_code == 75);
    REQUIRE(job.agent.step(SignalArrived{dismissal_signal}, t0).empty());
  }
  SECTION("nor after the verdict") {
    static_cast<void>(job.agent.step(FromCoordinator{End{verdict(1)}}, t0));
    REQUIRE(job.agent.step(SignalArrived{dismissal_signal}, t0).empty());
  }
}

}  // namespace torchup
