#include <catch2/catch.hpp>
#include <optional>
#include <utility>

#include "tests/unit/launcher/running_agent.hpp"
#include "tests/unit/rendezvous/rendezvous_job.hpp"

namespace torchup {

using namespace agent_test;

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

TEST_CASE("a workers' store that cannot be made ends the job, with 65 where the machine has run out", "[unit][agent]") {
  namespace errc = boost::system::errc;
  for (const auto& [why, exit_code] : {std::pair{errc::resource_unavailable_try_again, 65},
                                       std::pair{errc::too_many_files_open, 65}, std::pair{errc::address_in_use, 67}}) {
    Agent agent{two_workers(), AgentIdentity{NodeId{"n"}, "host", {}, {}}};
    agent.step(Begin{}, t0);
    agent.step(FromCoordinator{HostStore{Round{3}}}, t0);
    const auto failed = agent.step(StoreFailed{Round{3}, Error{make_error_code(why), "no thread"}}, t0);
    REQUIRE(find_sent<Leave>(failed));
    REQUIRE(find_sent<Leave>(failed)->exit_code == exit_code);
    REQUIRE_THAT(find_sent<Leave>(failed)->reason, Catch::StartsWith("no worker store for round 3: no thread"));
  }
}

TEST_CASE("an agent tells its role as the others' comes over the wire", "[unit][agent]") {
  LaunchConfig config = two_workers();
  config.role = std::string(300, 'r');
  Agent agent{config, AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  REQUIRE(find_sent<Join>(agent.step(Begin{}, t0))->role == std::string(256, 'r'));
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
  Running job{two_workers(1)};
  StopWorkers stop;
  stop.cause = StopCause::fenced;
  std::vector<LocalRank> alive = both;
  int after_signal = 0;
  SECTION("whose workers run") {}
  SECTION("that stops them already, after a failure") {
    job.agent.step(ended(0, 3), t0);
    alive = {LocalRank{1}};
    after_signal = SIGTERM;
  }
  const auto fenced = job.agent.step(FromCoordinator{stop}, t0 + 1s);
  REQUIRE(find<KillWorkers>(fenced)->workers == alive);
  REQUIRE(find_event<event::WorkerKilled>(fenced)->after_signal == after_signal);
  REQUIRE_FALSE(find<SignalWorkers>(fenced));
  const auto deadline = job.agent.deadline();
  const bool told = GENERATE(true, false);
  const auto after = told ? job.agent.step(FromCoordinator{End{verdict(143)}}, t0 + 2s)
                          : job.agent.step(CoordinatorLost{67, "gone"}, t0 + 2s);
  REQUIRE_FALSE(find<SignalWorkers>(after));
  REQUIRE(job.agent.deadline() == deadline);
}

TEST_CASE("a node on which no worker can run says so to all, and starts none", "[unit][agent]") {
  LaunchConfig config = two_workers();
  const int code = GENERATE(2, 66);
  config.gives_up = "of the 2 tasks on this node these have not come";
  config.gives_up_code = code;
  Agent agent{config, AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  const auto begun = agent.step(Begin{}, t0);
  REQUIRE(find_sent<Join>(begun)->unfit == config.gives_up);  // only of members the others hear
  REQUIRE(find_sent<Join>(begun)->needed);
  REQUIRE(find_sent<Join>(begun)->needed_code == code);
  REQUIRE_FALSE(find_sent<Leave>(begun));
  REQUIRE(agent.step(FromCoordinator{Waiting{"no route", true}}, t0).size() == 1);  // it is said, and changes nothing
  std::vector<AgentAction> actions;
  SECTION("once the others had time to come") {
    REQUIRE(agent.step(FromCoordinator{Waiting{"1 of 2 nodes"}}, t0).empty());
    REQUIRE(agent.deadline() == t0 + decline_patience);
    actions = agent.step(Wake{}, t0 + decline_patience);
  }
  SECTION("at once, where a coordinator that knows no such node has placed them") {
    actions = agent.step(FromCoordinator{placed()}, t0);
  }
  REQUIRE(find_sent<Leave>(actions)->ends_job);
  REQUIRE(find_sent<Leave>(actions)->exit_code == code);
  REQUIRE_FALSE(find<StartWorkers>(actions));
  REQUIRE(find<Finish>(agent.step(FromCoordinator{End{verdict(66)}}, t0 + 4s))->verdict.exit_code == 66);
}

namespace {

/// A job of a, whose round runs, and b, on which no worker can run: that one has its agent.
struct BegunWithout {
  BegunWithout() {
    job.join("a");
    job.pass(t0 + 1s);
    job.say("a", StoreReady{Round{0}, Port{4000}});
    joined = *find_sent<Join>(agent.step(Begin{}, job.now));
    job.connect("b");
    hear(Said{peer("b"), joined});
  }
  static LaunchConfig config() {
    LaunchConfig config = two_workers(1);
    config.terms.max_nodes = 2;
    config.terms.last_call = 1s;
    config.gives_up = "of the 2 tasks on this node these have not come";
    return config;
  }
  [[nodiscard]] Peer peer(const std::string& name) const { return job.peer_of.at(name); }
  /// What the agent does about whatever it is told then.
  std::vector<AgentAction> hear(const RendezvousEvent& event) {
    std::vector<AgentAction> done = agent.step(Wake{}, job.now);
    for (const RendezvousAction& action : job.rendezvous.step(event, job.now)) {
      const auto* tell = std::get_if<Tell>(&action);
      if (!tell || tell->peer != peer("b")) continue;
      for (AgentAction& next : agent.step(FromCoordinator{tell->message}, job.now)) done.push_back(std::move(next));
    }
    if (const Leave* leave = find_sent<Leave>(done)) {
      left_at = job.now;
      hear(Said{peer("b"), Leave{*leave}});
    }
    return done;
  }
  void pass(Duration duration) {
    for (const TimePoint until = job.now + duration; job.now < until;) {
      job.now += 100ms;
      for (const auto& [name, peer] : job.peer_of) hear(Alive{peer});
    }
  }
  /// It remembers nothing, and b is the first to come back.
  void coordinator_restarts() {
    job.now += 1s;
    job.rendezvous = Rendezvous{{.started = job.now}};
    job.peer_of.clear();
    job.connect("b");
    hear(Resumed{peer("b"), {.join = joined}});
  }
  void a_comes_back(Resume::Stage stage) {
    const Placement place{.round = Round{0},
                          .group_world_size = 1,
                          .world_size = 2,
                          .role_world_size = 2,
                          .master_addr = "10.0.0.1",
                          .master_port = Port{4000}};
    job.connect("a");
    hear(Resumed{peer("a"), {.join = job.join_of("a"), .stage = stage, .placement = place}});
  }

  rendezvous_job::Job job{config().terms};
  Agent agent{config(), AgentIdentity{NodeId{"n"}, "b", {}, {}}};
  Join joined;
  std::optional<TimePoint> left_at;
};

}  // namespace

TEST_CASE("a node on which no worker can run ends no job that has begun without it", "[unit][agent]") {
  BegunWithout begun;
  WorkersFailed failed{.round = Round{0}};
  failed.failures.push_back({.exit_code = 3, .host = "a"});
  begun.hear(Said{begun.peer("a"), failed});
  begun.pass(20s);  // it takes its time to stop its workers
  REQUIRE(begun.job.rendezvous.restart_count() == 1);
  begun.hear(Said{begun.peer("a"), begun.job.join_of("a")});
  REQUIRE(begun.job.rendezvous.phase() == Rendezvous::Phase::hosting);
  REQUIRE_FALSE(begun.left_at);
  const auto end = begun.hear(Said{begun.peer("a"), Leave{.exit_code = 130}});
  REQUIRE(find<Finish>(end)->verdict.exit_code == 130);
}

TEST_CASE("nor does it where the coordinator has forgotten that the job has begun", "[unit][agent]") {
  BegunWithout begun;
  begun.coordinator_restarts();
  const TimePoint restarted = begun.job.now;
  const Rendezvous& rendezvous = begun.job.rendezvous;
  SECTION("and hears of the round only when that node would have ended it") {
    begun.pass(GENERATE(1500ms, 4s));
    begun.a_comes_back(Resume::Stage::running);
    begun.pass(60s);
    REQUIRE(rendezvous.phase() == Rendezvous::Phase::running);
    REQUIRE_FALSE(begun.left_at);
    SECTION("though a user may end it there") {
      begun.hear(Said{begun.peer("b"), Leave{.exit_code = 130}});
      REQUIRE(rendezvous.verdict()->exit_code == 130);
    }
  }
  SECTION("and hears that a round is over") {
    begun.pass(500ms);
    begun.a_comes_back(Resume::Stage::stopping);
    begun.pass(60s);
    begun.hear(Said{begun.peer("a"), begun.job.join_of("a")});
    begun.pass(begun.config().terms.last_call);
    REQUIRE(rendezvous.phase() == Rendezvous::Phase::hosting);
    REQUIRE_FALSE(begun.left_at);
  }
  SECTION("and hears of it when that node has been told that there is none") {
    begun.pass(return_limit_default + decline_patience / 2);
    begun.a_comes_back(Resume::Stage::running);
    begun.pass(2 * decline_patience);
    REQUIRE(begun.left_at);
    REQUIRE(rendezvous.phase() == Rendezvous::Phase::running);
    REQUIRE(rendezvous.member_count() == 1);
  }
  SECTION("but it does where no round is heard of while one may be running") {
    begun.pass(return_limit_default + 2 * decline_patience);
    REQUIRE(begun.left_at);
    REQUIRE(*begun.left_at >= restarted + return_limit_default + decline_patience);
    REQUIRE(rendezvous.verdict()->exit_code == begun.config().gives_up_code);
  }
}

TEST_CASE("who leaves others alone says so at the end", "[unit][agent]") {
  LaunchConfig config = two_workers();
  config.terms.max_nodes = 2;
  const int number = GENERATE(SIGTERM, SIGINT);
  Running job{config};
  REQUIRE(find_sent<Leave>(job.agent.step(SignalArrived{number}, t0))->ends_job == (number == SIGINT));
  static_cast<void>(job.agent.step(FromCoordinator{End{verdict(128 + number)}}, t0));
  static_cast<void>(job.agent.step(ended(0, -number), t0));
  static_cast<void>(job.agent.step(ended(1, -number), t0));
  REQUIRE(find<Finish>(job.agent.step(DescendantsGone{}, t0))->left == (number == SIGTERM));
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

TEST_CASE("who has lost the coordinator reports that, and not what it ended itself", "[unit][agent]") {
  Running job{two_workers(1)};
  const bool fails = GENERATE(true, false);
  const int code = GENERATE(67, 68);
  StopWorkers stop;
  stop.cause = StopCause::fenced;
  if (fails) job.agent.step(ended(0, 3), t0);
  job.agent.step(FromCoordinator{stop}, t0);
  for (int i = fails ? 1 : 0; i < 2; ++i) job.agent.step(ended(i, -SIGKILL), t0);
  REQUIRE(find_sent<Join>(job.agent.step(DescendantsGone{}, t0)));
  const auto over = job.agent.step(CoordinatorLost{code, "was not reached"}, t0 + 8s);
  const Verdict& end = find<Finish>(over)->verdict;
  REQUIRE(end.reason == "was not reached");
  REQUIRE(end.failures.size() == (fails ? 1U : 0U));
  if (fails) REQUIRE(end.failures.front().exit_code == 3);
  REQUIRE(end.reporter == (code == 67 ? "host" : ""));
}

TEST_CASE("who finds no coordinator before its first round does not claim the report", "[unit][agent]") {
  Agent agent{two_workers(), AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  agent.step(Begin{}, t0);
  REQUIRE(find<Finish>(agent.step(CoordinatorLost{67, "was not reached"}, t0))->verdict.reporter.empty());
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

}  // namespace torchup
