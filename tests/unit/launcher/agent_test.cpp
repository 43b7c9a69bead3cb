#include "launcher/core/agent/agent.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>

namespace torchup {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint t0{};

LaunchConfig two_workers(int max_restarts = 0) {
  LaunchConfig config;
  config.local_world_size = 2;
  config.terms.max_restarts = max_restarts;
  config.end_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  config.forward_signals = {SIGUSR1, SIGUSR2};
  config.program.executable = "/bin/prog";
  return config;
}

Placed placed(std::int64_t round = 0, int restart_count = 0) {
  Placed message;
  message.placement.round = Round{round};
  message.placement.world_size = 2;
  message.placement.restart_count = restart_count;
  return message;
}

template <class T>
const T* find(const std::vector<AgentAction>& actions) {
  for (const AgentAction& action : actions) {
    if (const T* found = std::get_if<T>(&action)) return found;
  }
  return nullptr;
}

template <class T>
const T* find_sent(const std::vector<AgentAction>& actions) {
  for (const AgentAction& action : actions) {
    const Send* sent = std::get_if<Send>(&action);
    if (const T* found = sent ? std::get_if<T>(&sent->message) : nullptr) return found;
  }
  return nullptr;
}

template <class T>
const T* find_event(const std::vector<AgentAction>& actions) {
  for (const AgentAction& action : actions) {
    const Record* record = std::get_if<Record>(&action);
    if (const T* found = record ? std::get_if<T>(&record->event) : nullptr) return found;
  }
  return nullptr;
}

/// What there is to do, the record apart.
std::size_t deeds(const std::vector<AgentAction>& actions) {
  return static_cast<std::size_t>(std::ranges::count_if(
      actions, [](const AgentAction& action) { return !std::holds_alternative<Record>(action); }));
}

WorkerEnded ended(int local_rank, int exit_code) {
  WorkerEnded event;
  event.local_rank = LocalRank{local_rank};
  event.exit_code = exit_code;
  return event;
}

const std::vector<LocalRank> both{LocalRank{0}, LocalRank{1}};

/// An agent whose two workers run, pids 100 and 101.
struct Running {
  explicit Running(LaunchConfig config = two_workers()) : agent{config, AgentIdentity{NodeId{"n"}, "host", {}, {}}} {
    static_cast<void>(agent.step(Begin{}, t0));
    static_cast<void>(agent.step(FromCoordinator{HostStore{Round{0}}}, t0));
    static_cast<void>(agent.step(StoreOpened{Round{0}, Port{4000}}, t0));
    started = agent.step(FromCoordinator{placed()}, t0);
    start();
  }
  void start() {
    static_cast<void>(agent.step(WorkerStarted{LocalRank{0}, 100}, t0));
    static_cast<void>(agent.step(WorkerStarted{LocalRank{1}, 101}, t0));
  }
  Agent agent;
  std::vector<AgentAction> started;
};

Verdict verdict(int code) {
  Verdict result;
  result.exit_code = code;
  return result;
}

}  // namespace

TEST_CASE("an agent joins, opens the store it is asked for, starts its workers", "[unit][agent]") {
  Agent agent{two_workers(), AgentIdentity{NodeId{"n"}, "host", {"10.0.0.1"}, {}}};
  const auto joined = agent.step(Begin{}, t0);
  REQUIRE(find_sent<Join>(joined));
  REQUIRE(find_sent<Join>(joined)->local_world_size == 2);
  REQUIRE(find_sent<Join>(joined)->addresses == std::vector<std::string>{"10.0.0.1"});
  REQUIRE(find<OpenStore>(agent.step(FromCoordinator{HostStore{Round{3}}}, t0)));
  const auto opened = agent.step(StoreOpened{Round{3}, Port{4000}}, t0);
  REQUIRE(find_sent<StoreReady>(opened));
  REQUIRE(find_sent<StoreReady>(opened)->port == Port{4000});
  const auto started = agent.step(FromCoordinator{placed()}, t0);
  REQUIRE(find<StartWorkers>(started));
  REQUIRE(find<StartWorkers>(started)->attempt == "attempt_0");
}

TEST_CASE("success is told when the last worker ends, and the verdict waits for the sweep", "[unit][agent]") {
  Running job;
  REQUIRE(deeds(job.agent.step(ended(0, 0), t0 + 1s)) == 0);
  const auto last = job.agent.step(ended(1, 0), t0 + 2s);
  REQUIRE(find_sent<WorkersSucceeded>(last));
  REQUIRE(find<SweepDescendants>(last));
  // What good workers leave behind tidies up after them.
  REQUIRE(*find<SweepDescendants>(last) == SweepDescendants{leftover_patience, 30s});
  REQUIRE(!find<Finish>(job.agent.step(FromCoordinator{End{verdict(0)}}, t0 + 2s)));
  const auto done = job.agent.step(DescendantsGone{}, t0 + 3s);
  REQUIRE(find<Finish>(done));
  REQUIRE(find<Finish>(done)->verdict.exit_code == 0);
}

TEST_CASE("a failure stops the siblings at once and is told before they are gone", "[unit][agent]") {
  Running job;
  const auto failed = job.agent.step(ended(1, 7), t0 + 1s);
  REQUIRE(find_sent<WorkersFailed>(failed));
  REQUIRE(find_sent<WorkersFailed>(failed)->failures.front().exit_code == 7);
  REQUIRE(find_sent<WorkersFailed>(failed)->failures.front().pid == 101);
  REQUIRE(find<SignalWorkers>(failed));
  REQUIRE(find<SignalWorkers>(failed)->number == SIGTERM);
  REQUIRE(job.agent.deadline() == t0 + 31s);

  SECTION("a sibling that dies of it is listed behind the cause, and told to nobody") {
    const auto sibling = job.agent.step(ended(0, -SIGTERM), t0 + 2s);
    REQUIRE(!find_sent<WorkersFailed>(sibling));
    REQUIRE(find<SweepDescendants>(sibling));
    REQUIRE(!find<Finish>(job.agent.step(DescendantsGone{}, t0 + 2s)));
    const auto done = job.agent.step(FromCoordinator{End{verdict(1)}}, t0 + 2s);
    REQUIRE(find<Finish>(done));
    REQUIRE(find<Finish>(done)->local_failures.size() == 2);
    REQUIRE(find<Finish>(done)->local_failures.front().exit_code == 7);
  }
  SECTION("a sibling that ignores it is killed when the grace is over, not before") {
    REQUIRE(job.agent.step(Wake{}, t0 + 31s - 1ns).empty());
    REQUIRE(find<KillWorkers>(job.agent.step(Wake{}, t0 + 31s)));
    SECTION("and given up when not even that ends it; the job is lost with 1") {
      REQUIRE(job.agent.deadline() == t0 + 41s);
      const auto given_up = job.agent.step(Wake{}, t0 + 41s);
      REQUIRE(find_sent<Leave>(given_up));
      REQUIRE(find_sent<Leave>(given_up)->exit_code == 1);
      REQUIRE(find<SweepDescendants>(given_up));
    }
  }
}

TEST_CASE("a restart joins only when nothing of the attempt lives", "[unit][agent]") {
  Running job{two_workers(1)};
  static_cast<void>(job.agent.step(ended(0, 1), t0 + 1s));
  StopWorkers stop;
  stop.cause = StopCause::worker_failure;
  REQUIRE(!find_sent<Join>(job.agent.step(FromCoordinator{stop}, t0 + 1s)));
  REQUIRE(!find_sent<Join>(job.agent.step(ended(1, -SIGTERM), t0 + 1s)));
  REQUIRE(find_sent<Join>(job.agent.step(DescendantsGone{}, t0 + 1s)));
  const auto again = job.agent.step(FromCoordinator{placed(1, 1)}, t0 + 1s);
  REQUIRE(find<StartWorkers>(again));
  REQUIRE(find<StartWorkers>(again)->attempt == "attempt_1");
}

TEST_CASE("a membership change is no failure and gets a log folder of its own", "[unit][agent]") {
  Running job{two_workers(1)};
  StopWorkers stop;
  stop.reason = "node b joined";
  REQUIRE(find<SignalWorkers>(job.agent.step(FromCoordinator{stop}, t0 + 1s)));
  REQUIRE(!find_sent<WorkersFailed>(job.agent.step(ended(0, -SIGTERM), t0 + 1s)));
  static_cast<void>(job.agent.step(ended(1, 1), t0 + 1s));
  REQUIRE(find_sent<Join>(job.agent.step(DescendantsGone{}, t0 + 1s)));
  REQUIRE(find<StartWorkers>(job.agent.step(FromCoordinator{placed(1, 0)}, t0 + 1s))->attempt == "attempt_0.r1");
}

TEST_CASE("a fenced agent kills without grace", "[unit][agent]") {
  Running job;
  StopWorkers stop;
  stop.cause = StopCause::fenced;
  REQUIRE(find<KillWorkers>(job.agent.step(FromCoordinator{stop}, t0 + 1s)));
}

TEST_CASE("restarts are paced when asked for", "[unit][agent]") {
  LaunchConfig config = two_workers(9);
  config.restart_backoff = {1s, 3s};
  Running job{config};
  TimePoint now = t0;
  for (const Duration pause : {1s, 2s, 3s, 3s}) {
    static_cast<void>(job.agent.step(ended(0, 1), now));
    static_cast<void>(job.agent.step(ended(1, -SIGTERM), now));
    static_cast<void>(job.agent.step(FromCoordinator{StopWorkers{}}, now));
    REQUIRE(!find_sent<Join>(job.agent.step(DescendantsGone{}, now)));
    REQUIRE(job.agent.deadline() == now + pause);
    now += pause;
    REQUIRE(find_sent<Join>(job.agent.step(Wake{}, now)));
    static_cast<void>(job.agent.step(FromCoordinator{placed(0, 1)}, now));
    job.start();
  }
}

TEST_CASE("signals", "[unit][agent]") {
  Running job;
  SECTION("one that is passed on changes nothing else") {
    const auto actions = job.agent.step(SignalArrived{SIGUSR1}, t0);
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

TEST_CASE("option --timeout ends the job, once", "[unit][agent]") {
  LaunchConfig config = two_workers();
  config.timeout = 60s;
  Running job{config};
  REQUIRE(job.agent.deadline() == t0 + 60s);
  REQUIRE(job.agent.step(Wake{}, t0 + 60s - 1ns).empty());
  const auto over = job.agent.step(Wake{}, t0 + 60s);
  REQUIRE(find_sent<Leave>(over)->exit_code == 1);
  REQUIRE(find<SignalWorkers>(over)->number == SIGTERM);
  REQUIRE(job.agent.deadline() == t0 + 90s);
  REQUIRE(!find_sent<Leave>(job.agent.step(Wake{}, t0 + 61s)));
}

TEST_CASE("a lost coordinator stops the workers and gives its own code", "[unit][agent]") {
  Running job;
  REQUIRE(find<SignalWorkers>(job.agent.step(CoordinatorLost{67, "gone"}, t0)));
  static_cast<void>(job.agent.step(ended(0, -SIGTERM), t0));
  static_cast<void>(job.agent.step(ended(1, -SIGTERM), t0));
  REQUIRE(find<Finish>(job.agent.step(DescendantsGone{}, t0))->verdict.exit_code == 67);
}

TEST_CASE("a program that cannot be started is no reason for another attempt", "[unit][agent]") {
  Agent agent{two_workers(3), AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  static_cast<void>(agent.step(Begin{}, t0));
  static_cast<void>(agent.step(FromCoordinator{placed()}, t0));
  SpawnFailed event;
  event.reason = "/bin/prog: No such file or directory";
  event.permanent = true;
  const auto failed = agent.step(event, t0);
  REQUIRE(find_sent<WorkersFailed>(failed));
  REQUIRE(!find_sent<WorkersFailed>(failed)->may_restart);
  REQUIRE(!find<SweepDescendants>(failed));  // the second worker is still being started
  REQUIRE(find<SweepDescendants>(agent.step(WorkerNotStarted{LocalRank{1}}, t0)));
}

TEST_CASE("one signal to both processes of the launcher is one", "[unit][agent]") {
  const int number = GENERATE(SIGINT, SIGTERM, SIGQUIT);
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

TEST_CASE("a copy of a signal that drains or is passed on changes nothing", "[unit][agent]") {
  LaunchConfig config = two_workers();
  config.drain_signals = {SIGTERM};
  Running job{config};
  REQUIRE(find<DrainWorkers>(job.agent.step(SignalArrived{SIGTERM, false}, t0)));
  REQUIRE(job.agent.step(SignalArrived{SIGTERM, true}, t0 + 20ms).empty());
  REQUIRE(find<SignalWorkers>(job.agent.step(SignalArrived{SIGUSR1, true}, t0)));
  REQUIRE(job.agent.step(SignalArrived{SIGUSR1, false}, t0 + 20ms).empty());
}

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
    static_cast<void>(agent.step(SignalArrived{SIGINT}, t0 + 1s));
    REQUIRE(find<KillWorkers>(agent.step(WorkerStarted{LocalRank{0}, 100}, t0 + 2s))->workers ==
            std::vector{LocalRank{0}});
  }
}

namespace {

StepsSeen silent_since(TimePoint time) {
  WorkerProgress progress;
  progress.beats = 3;
  progress.step = 12;
  progress.ended_ns = std::chrono::nanoseconds{time.time_since_epoch()}.count();
  return {{{Rank{0}, LocalRank{0}, std::nullopt}, {Rank{1}, LocalRank{1}, progress}}};
}

}  // namespace

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
  SECTION("after 10 s") {
    REQUIRE_FALSE(find<KillWorkers>(job.agent.step(Wake{}, now + abort_patience - 1ns)));
    REQUIRE(find<KillWorkers>(job.agent.step(Wake{}, now + abort_patience))->workers == std::vector{LocalRank{1}});
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
  REQUIRE(find<KillWorkers>(agent.step(WorkerStarted{LocalRank{1}, 101}, t0 + 50s)));
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
  if (restarting) REQUIRE(*restarting == event::Restarting{2, "rank 0 failed"});
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
