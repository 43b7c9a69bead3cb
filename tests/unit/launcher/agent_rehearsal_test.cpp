// Which faults of a rehearsal an agent brings about, and what becomes of its end.
#include <catch2/catch.hpp>

#include "tests/unit/launcher/running_agent.hpp"

namespace torchup {

using namespace agent_test;

namespace {

LaunchConfig rehearsing(std::string_view script, int max_restarts = 0, int nodes = 1) {
  LaunchConfig config = two_workers(max_restarts);
  config.terms.max_nodes = nodes;
  auto parsed = parse_rehearsal(script);
  if (!parsed) FAIL(parsed.error().message());
  config.rehearsal.script = *std::move(parsed);
  return config;
}

/// The same as a node of a starter.
LaunchConfig started_node(std::string_view script) {
  LaunchConfig config = rehearsing(script, 0, 2);
  config.rehearsal.node = RehearsedNode{0, 2, Port{20000}, {}};
  return config;
}

StatesSeen stopped(int local_rank) {
  StatesSeen seen;
  for (int i = 0; i < 2; ++i) {
    seen.samples.push_back({WorkerId{Rank{i}, LocalRank{i}, 100 + i}, i == local_rank ? 'T' : 'S'});
  }
  return seen;
}

std::vector<std::string> told(const std::vector<AgentAction>& actions) {
  std::vector<std::string> texts;
  for (const AgentAction& action : actions) {
    const auto* const record = std::get_if<Record>(&action);
    const auto* const fault = record ? std::get_if<event::FaultInjected>(&record->event) : nullptr;
    if (fault) texts.push_back(fault->text);
  }
  return texts;
}

}  // namespace

TEST_CASE("a rank is killed by a signal to its group, at its time", "[unit][agent_rehearsal]") {
  Running running{rehearsing("at 5s kill rank=1 signal=TERM")};
  REQUIRE(running.agent.deadline() == t0 + 5s);
  const auto actions = running.agent.step(Wake{}, t0 + 5s);
  const auto* const wanted = find<InjectFault>(actions);
  REQUIRE(wanted->pid == 101);
  REQUIRE(wanted->inject.local_rank == LocalRank{1});
  REQUIRE(wanted->inject.action.signal == SIGTERM);
  REQUIRE(told(actions).empty());
  SECTION("and that is told once it is done") {
    REQUIRE(told(running.agent.step(FaultAnswered{wanted->inject.fault}, t0 + 5s)) ==
            std::vector<std::string>{"kill rank=1 signal=SIGTERM at 5 s"});
  }
  SECTION("or that it could not be done, and nothing else") {
    REQUIRE(told(running.agent.step(FaultAnswered{wanted->inject.fault, "it is gone"}, t0 + 5s)) ==
            std::vector<std::string>{"kill rank=1 signal=SIGTERM at 5 s: it is gone"});
  }
}

TEST_CASE("stops and slow-downs are the shell's, of the process that has the rank", "[unit][agent_rehearsal]") {
  Running running{rehearsing("at 5s stop rank=1 for=3s; at 6s slow rank=0 by=30% for=1s")};
  auto actions = running.agent.step(Wake{}, t0 + 5s);
  REQUIRE(find<InjectFault>(actions)->inject.action.kind == FaultKind::stop_rank);
  REQUIRE(find<InjectFault>(actions)->pid == 101);
  actions = running.agent.step(Wake{}, t0 + 6s);
  REQUIRE(find<InjectFault>(actions)->inject.action.by_percent == 30);
  REQUIRE(find<InjectFault>(actions)->pid == 100);
}

TEST_CASE("a fault of a worker that is being started waits for it", "[unit][agent_rehearsal]") {
  Agent agent{rehearsing("at 1s kill rank=1; at 1s stop rank=1 for=1s"), AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  static_cast<void>(agent.step(Begin{}, t0));
  static_cast<void>(agent.step(FromCoordinator{placed()}, t0));
  static_cast<void>(agent.step(WorkerStarted{LocalRank{0}, 100}, t0));
  REQUIRE(told(agent.step(Wake{}, t0 + 1s)).empty());
  SECTION("until it runs") {
    const auto actions = agent.step(WorkerStarted{LocalRank{1}, 101}, t0 + 2s);
    REQUIRE(find<InjectFault>(actions)->pid == 101);
    REQUIRE(std::ranges::count_if(
                actions, [](const AgentAction& each) { return std::holds_alternative<InjectFault>(each); }) == 2);
  }
  SECTION("until the round is over") {
    const auto actions = agent.step(SignalArrived{SIGINT}, t0 + 2s);
    REQUIRE(told(actions) == std::vector<std::string>{"kill rank=1 at 1 s: its worker was not started",
                                                      "stop rank=1 for=1s at 1 s: its worker was not started"});
  }
}

TEST_CASE("a worker that has ended is no target", "[unit][agent_rehearsal]") {
  Running running{rehearsing("at 5s kill rank=1")};
  static_cast<void>(running.agent.step(ended(1, 0), t0 + 1s));
  const auto actions = running.agent.step(Wake{}, t0 + 5s);
  REQUIRE(told(actions) == std::vector<std::string>{"kill rank=1 at 5 s: its worker has ended"});
  REQUIRE(!find<InjectFault>(actions));
}

TEST_CASE("what the shell could not do is told", "[unit][agent_rehearsal]") {
  Running running{rehearsing("at 5s cut node=0 for=1s")};
  const auto fault = find<InjectFault>(running.agent.step(Wake{}, t0 + 5s))->inject.fault;
  REQUIRE(told(running.agent.step(FaultAnswered{fault, "there is no link"}, t0 + 5s)) ==
          std::vector<std::string>{"cut node=0 for=1s at 5 s: there is no link"});
}

TEST_CASE("whoever is stopped for a rehearsal is let go when the workers are to stop", "[unit][agent_rehearsal]") {
  Running running{rehearsing("at 5s stop rank=1 for=60s", 1)};
  static_cast<void>(running.agent.step(Wake{}, t0 + 5s));
  const auto actions = running.agent.step(ended(0, 1), t0 + 6s);
  const auto at = [&](auto is) { return std::ranges::find_if(actions, is) - actions.begin(); };
  const auto release = at([](const auto& each) { return std::holds_alternative<ReleaseWorkers>(each); });
  const auto signal = at([](const auto& each) { return std::holds_alternative<SignalWorkers>(each); });
  REQUIRE(release < signal);
  REQUIRE(static_cast<std::size_t>(signal) < actions.size());
}

TEST_CASE("an agent without a rehearsal lets nobody go", "[unit][agent_rehearsal]") {
  Running running;
  REQUIRE(!find<ReleaseWorkers>(running.agent.step(ended(0, 1), t0)));
}

TEST_CASE("nobody warns of a stop of our own", "[unit][agent_rehearsal]") {
  Running running{rehearsing("at 5s stop rank=1 for=60s")};
  static_cast<void>(running.agent.step(Wake{}, t0 + 5s));
  for (int second = 6; second < 10; ++second) {
    REQUIRE(!find_event<event::WorkerStopped>(running.agent.step(stopped(1), t0 + std::chrono::seconds{second})));
  }
  static_cast<void>(running.agent.step(stopped(0), t0 + 10s));
  REQUIRE(find_event<event::WorkerStopped>(running.agent.step(stopped(0), t0 + 11s)));
}

TEST_CASE("the time of a stop of our own is no silence", "[unit][agent_rehearsal]") {
  Running running{rehearsing("at 1s stop rank=1 for=20s")};
  const auto silence = [&](int tenth) {
    const TimePoint now = t0 + tenth * 100ms;
    return find<ReportProgress>(running.agent.step(steps(3, t0 + 500ms), now))->report.silence;
  };
  for (int tenth = 1; tenth < 10; ++tenth) silence(tenth);
  const Duration before = silence(10);
  for (int tenth = 11; tenth < 205; ++tenth) silence(tenth);
  REQUIRE(silence(205) <= before + 100ms);
  for (int tenth = 206; tenth < 250; ++tenth) silence(tenth);
  REQUIRE(silence(250) >= before + 3s);
}

TEST_CASE("what lets a stopped node go on is no wish of the user's", "[unit][agent_rehearsal]") {
  Running running{rehearsing("at 5s stop node=0 for=3s")};
  const auto actions = running.agent.step(Wake{}, t0 + 5s);
  REQUIRE(find<InjectFault>(actions)->inject.action.kind == FaultKind::stop_node);
  REQUIRE(told(actions) == std::vector<std::string>{"stop node=0 for=3s at 5 s"});  // later it stands still
  REQUIRE(running.agent.step(SignalArrived{SIGCONT}, t0 + 8s).empty());
  SECTION("later it is one") {
    REQUIRE(find_event<event::SignalReceived>(running.agent.step(SignalArrived{SIGCONT}, t0 + 20s)));
  }
  SECTION("and so it is after Ctrl-Z") {
    static_cast<void>(running.agent.step(SignalArrived{SIGTSTP}, t0 + 8500ms));
    REQUIRE(find_event<event::SignalReceived>(running.agent.step(SignalArrived{SIGCONT}, t0 + 9s)));
  }
}

TEST_CASE("Ctrl-Z lets nobody run on", "[unit][agent_rehearsal]") {
  Running running{rehearsing("at 5s slow rank=1 by=100% for=60s")};
  static_cast<void>(running.agent.step(Wake{}, t0 + 5s));
  const auto actions = running.agent.step(SignalArrived{SIGTSTP}, t0 + 6s);
  REQUIRE(std::holds_alternative<ReleaseWorkers>(actions.front()));
}

TEST_CASE("a rehearsal's result is that of the job's end", "[unit][agent_rehearsal]") {
  Running running{rehearsing("at 5s kill rank=1; expect exit=3 ranks=2")};
  static_cast<void>(running.agent.step(Wake{}, t0 + 5s));
  static_cast<void>(running.agent.step(ended(1, -SIGKILL), t0 + 5s));
  static_cast<void>(running.agent.step(ended(0, -SIGTERM), t0 + 6s));
  static_cast<void>(running.agent.step(FromCoordinator{End{verdict(1)}}, t0 + 6s));
  const auto actions = running.agent.step(DescendantsGone{}, t0 + 6s);
  const auto* const finish = find<Finish>(actions);
  REQUIRE(finish);
  REQUIRE(finish->rehearsal);
  REQUIRE(finish->rehearsal->text == "rehearsal failed: expected exit=3, was 1");
  REQUIRE(finish->rehearsal->exit_code == 1);
  REQUIRE(finish->rehearsal->faults.at(0).noticed_after == Duration{0});
  REQUIRE(!find<TellStarter>(actions));
}

TEST_CASE("without a rehearsal there is no result", "[unit][agent_rehearsal]") {
  Running running;
  for (const int local_rank : {0, 1}) static_cast<void>(running.agent.step(ended(local_rank, 0), t0));
  static_cast<void>(running.agent.step(FromCoordinator{End{verdict(0)}}, t0));
  REQUIRE(!find<Finish>(running.agent.step(DescendantsGone{}, t0))->rehearsal);
}

TEST_CASE("a node of a starter tells it of its place, its absence and its end", "[unit][agent_rehearsal]") {
  using What = RehearsalReport::What;
  Running running{started_node("at 5s stop rank=1 for=1s; at 9s kill node=0 back=3s")};
  REQUIRE(find<TellStarter>(running.started)->report == RehearsalReport{});
  static_cast<void>(running.agent.step(Wake{}, t0 + 5s));
  SECTION("before it is killed") {
    const auto actions = running.agent.step(Wake{}, t0 + 9s);
    const RehearsalReport& report = find<TellStarter>(actions)->report;
    REQUIRE(report.what == What::away);
    REQUIRE(report.back == 3s);
    REQUIRE(report.restart == RehearsalStart{t0, GroupRank{0}, 2, -1});
    REQUIRE(report.faults.size() == 2);
    REQUIRE(find<InjectFault>(actions)->inject.action.kind == FaultKind::kill_node);
    REQUIRE(told(actions) == std::vector<std::string>{"kill node=0 back=3s at 9 s"});
  }
  SECTION("when the job ends") {
    for (const int local_rank : {0, 1}) static_cast<void>(running.agent.step(ended(local_rank, 0), t0 + 6s));
    static_cast<void>(running.agent.step(FromCoordinator{End{verdict(0)}}, t0 + 6s));
    const auto actions = running.agent.step(DescendantsGone{}, t0 + 6s);
    REQUIRE(find<TellStarter>(actions)->report.what == What::ended);
    REQUIRE(find<TellStarter>(actions)->report.job == RehearsedJob{0, 0, 2});
    REQUIRE(!find<Finish>(actions)->rehearsal);
  }
}

TEST_CASE("a node leaves as by SIGTERM, and has no say in the result", "[unit][agent_rehearsal]") {
  SECTION("of a job of many") {
    Running running{rehearsing("at 5s leave node=0", 0, 2)};
    const auto actions = running.agent.step(Wake{}, t0 + 5s);
    REQUIRE(find_sent<Leave>(actions)->ends_job == false);
    REQUIRE(find_sent<Leave>(actions)->exit_code == 143);
    REQUIRE(find<SignalWorkers>(actions)->number == SIGTERM);
    for (const int local_rank : {0, 1}) static_cast<void>(running.agent.step(ended(local_rank, -SIGTERM), t0 + 5s));
    static_cast<void>(running.agent.step(DescendantsGone{}, t0 + 5s));
    REQUIRE(!find<Finish>(running.agent.step(FromCoordinator{End{verdict(143)}}, t0 + 6s))->rehearsal);
  }
  SECTION("the only one has") {
    Running running{rehearsing("at 5s leave node=0; expect exit=143")};
    REQUIRE(find_sent<Leave>(running.agent.step(Wake{}, t0 + 5s))->ends_job);
    for (const int local_rank : {0, 1}) static_cast<void>(running.agent.step(ended(local_rank, -SIGTERM), t0 + 5s));
    static_cast<void>(running.agent.step(DescendantsGone{}, t0 + 5s));
    REQUIRE(find<Finish>(running.agent.step(FromCoordinator{End{verdict(143)}}, t0 + 6s))->rehearsal->passed);
  }
}

TEST_CASE("a node that comes later knows no zero, and takes no part", "[unit][agent_rehearsal]") {
  Agent agent{rehearsing("at 1s kill rank=1", 0, 2), AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  static_cast<void>(agent.step(Begin{}, t0));
  Placed late = placed(1);
  late.placement.membership_changes = 1;
  const auto actions = agent.step(FromCoordinator{late}, t0);
  REQUIRE(find_event<event::Warning>(actions));
  for (const int local_rank : {0, 1}) static_cast<void>(agent.step(WorkerStarted{LocalRank{local_rank}, 100}, t0));
  REQUIRE(told(agent.step(Wake{}, t0 + 1s)).empty());
}

TEST_CASE("a node of a starter has its name's number, also when it comes late", "[unit][agent_rehearsal]") {
  LaunchConfig config = started_node("at 1s cut node=1 for=1s");
  config.rehearsal.node->index = 1;
  Agent agent{config, AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  static_cast<void>(agent.step(Begin{}, t0));
  Placed late = placed(1);
  late.placement.membership_changes = 1;
  REQUIRE(!find_event<event::Warning>(agent.step(FromCoordinator{late}, t0)));
  for (const int local_rank : {0, 1}) static_cast<void>(agent.step(WorkerStarted{LocalRank{local_rank}, 100}, t0));
  REQUIRE(find<InjectFault>(agent.step(Wake{}, t0 + 1s)));
}

TEST_CASE("a node that is started again goes on", "[unit][agent_rehearsal]") {
  LaunchConfig config = started_node("at 1s kill node=1 back=1s; at 9s kill rank=1");
  config.rehearsal.node->start = RehearsalStart{t0, GroupRank{1}, 2, -1};
  Agent agent{config, AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  static_cast<void>(agent.step(Begin{}, t0 + 2s));
  Placed late = placed(1);
  late.placement.membership_changes = 1;
  REQUIRE(!find_event<event::Warning>(agent.step(FromCoordinator{late}, t0 + 3s)));
  for (const int local_rank : {0, 1}) static_cast<void>(agent.step(WorkerStarted{LocalRank{local_rank}, 100}, t0 + 3s));
  REQUIRE(find<InjectFault>(agent.step(Wake{}, t0 + 9s))->inject.action.kind == FaultKind::kill_rank);
}

TEST_CASE("a node of a starter tells it of its stop, and when it has lost its place", "[unit][agent_rehearsal]") {
  using What = RehearsalReport::What;
  Running running{started_node("at 5s stop node=0 for=60s")};
  auto actions = running.agent.step(Wake{}, t0 + 5s);
  REQUIRE(find<TellStarter>(actions)->report.what == What::stopped);
  REQUIRE(find<TellStarter>(actions)->report.lasts == 60s);
  StopWorkers stop;
  stop.cause = StopCause::fenced;
  actions = running.agent.step(FromCoordinator{stop}, t0 + 65s);
  REQUIRE(find<TellStarter>(actions)->report.what == What::waiting);
  for (const int local_rank : {0, 1}) static_cast<void>(running.agent.step(ended(local_rank, -SIGKILL), t0 + 65s));
  static_cast<void>(running.agent.step(DescendantsGone{}, t0 + 65s));
  actions = running.agent.step(FromCoordinator{placed(1)}, t0 + 66s);
  REQUIRE(find<TellStarter>(actions)->report.what == What::placed);
}

TEST_CASE("whoever waits for a worker that another node has stopped does not hang", "[unit][agent_rehearsal]") {
  Running running{started_node("at 1s stop node=1 for=20s")};
  const auto silence = [&](int tenth) {
    const TimePoint now = t0 + tenth * 100ms;
    return find<ReportProgress>(running.agent.step(steps(3, t0 + 500ms), now))->report.silence;
  };
  for (int tenth = 1; tenth < 10; ++tenth) silence(tenth);
  const Duration before = silence(10);
  for (int tenth = 11; tenth < 205; ++tenth) silence(tenth);
  REQUIRE(silence(205) <= before + 100ms);
}

TEST_CASE("no fault comes to a job that somebody ends", "[unit][agent_rehearsal]") {
  Running running{rehearsing("at 5s stop node=0 for=60m; at 6s kill rank=1")};
  static_cast<void>(running.agent.step(SignalArrived{SIGINT}, t0 + 4s));
  REQUIRE(!find<InjectFault>(running.agent.step(Wake{}, t0 + 9s)));
}

}  // namespace torchup
