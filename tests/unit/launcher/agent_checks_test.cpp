// What an agent looks at before it joins.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/unit/launcher/running_agent.hpp"

namespace torchup {

using namespace agent_test;

namespace {

const Finding small_shm{Check::shm, FindingLevel::warning, "/dev/shm has 64 MiB free", "make it larger"};
const Finding sick{Check::health, FindingLevel::unfit, "--health-check ended with 3: no mount", ""};
const Finding lost{Check::gpu, FindingLevel::unfit, "GPU 3 is lost (Xid 79)", "start the machine again"};

LaunchConfig with_checks(PreflightLevel level, const std::string& health_check = "", int nodes = 2) {
  LaunchConfig config = two_workers(3);
  config.terms.min_nodes = config.terms.max_nodes = nodes;
  config.preflight.level = level;
  config.preflight.health_check = health_check;
  return config;
}

Agent agent_of(const LaunchConfig& config) {
  return Agent{config, AgentIdentity{NodeId{"n"}, "nodeb", {"10.0.0.1"}, {}}};
}

/// The agent's workers run, one fails, and the coordinator wants another round.
void fail_a_worker(Agent& agent, TimePoint now) {
  static_cast<void>(agent.step(FromCoordinator{placed()}, now));
  for (const int local_rank : {0, 1})
    static_cast<void>(agent.step(WorkerStarted{LocalRank{local_rank}, 100 + local_rank}, now));
  static_cast<void>(agent.step(ended(0, 1), now));
  static_cast<void>(agent.step(ended(1, -SIGTERM), now));
  StopWorkers stop;
  stop.cause = StopCause::worker_failure;
  stop.reason = "rank 0 on nodeb exited with 1; restart 1 of 3";
  static_cast<void>(agent.step(FromCoordinator{stop}, now));
}

}  // namespace

TEST_CASE("an agent that has nothing to look at joins at once", "[unit][agent_checks]") {
  Agent agent = agent_of(with_checks(PreflightLevel::off));
  const auto actions = agent.step(Begin{}, t0);
  REQUIRE(find_sent<Join>(actions));
  REQUIRE(!find<RunChecks>(actions));
}

TEST_CASE("quick checks keep nobody waiting, and warn when they are done", "[unit][agent_checks]") {
  Agent agent = agent_of(with_checks(PreflightLevel::quick));
  const auto actions = agent.step(Begin{}, t0);
  REQUIRE(find_sent<Join>(actions));
  REQUIRE(find<RunChecks>(actions));
  REQUIRE(!find<RunChecks>(actions)->health);
  REQUIRE(!find<RunChecks>(actions)->ask_gpus);
  static_cast<void>(agent.step(FromCoordinator{placed()}, t0));  // they may be done when workers run
  const auto done = agent.step(ChecksDone{1, {small_shm}}, t0);
  REQUIRE(done.size() == 1);
  REQUIRE(*find_event<event::Preflight>(done) ==
          event::Preflight{"shm", "warning", "/dev/shm has 64 MiB free: make it larger"});
}

TEST_CASE("a node waits for the checks that may find it unfit", "[unit][agent_checks]") {
  LaunchConfig config = with_checks(PreflightLevel::full);
  SECTION("all of them") {}
  SECTION("a health check") { config = with_checks(PreflightLevel::off, "true"); }
  SECTION("a GPU that was lost when the plan was made") {
    config = with_checks(PreflightLevel::quick);
    config.preflight.gpus_asked = true;
    config.preflight.gpus_found.facts = {{.index = 3, .lost = true}};
  }
  Agent agent = agent_of(config);
  REQUIRE(!find_sent<Join>(agent.step(Begin{}, t0)));
  REQUIRE(!agent.deadline());
  const auto joined = agent.step(ChecksDone{1, {small_shm}}, t0 + 1s);
  REQUIRE(find_sent<Join>(joined));
  REQUIRE(find_sent<Join>(joined)->unfit.empty());
}

TEST_CASE("an unfit node says so in its Join, and is looked at again every 30 s", "[unit][agent_checks]") {
  Agent agent = agent_of(with_checks(PreflightLevel::quick, "check"));
  static_cast<void>(agent.step(Begin{}, t0));
  const auto joined = agent.step(ChecksDone{1, {small_shm, sick}}, t0 + 1s);
  REQUIRE(find_sent<Join>(joined)->unfit == "--health-check ended with 3: no mount");
  REQUIRE(*find_event<event::NodeUnfit>(joined) == event::NodeUnfit{"nodeb", "--health-check ended with 3: no mount"});
  REQUIRE(agent.deadline() == t0 + 31s);
  const auto again = agent.step(Wake{}, t0 + 31s);
  REQUIRE(find<RunChecks>(again));
  REQUIRE(find<RunChecks>(again)->level == PreflightLevel::quick);
  REQUIRE(find<RunChecks>(again)->health);
  REQUIRE(!find_sent<Join>(again));

  SECTION("what it finds again it does not tell again") {
    const auto still = agent.step(ChecksDone{2, {small_shm, sick}}, t0 + 32s);
    REQUIRE(!find_event<event::Preflight>(still));
    REQUIRE(!find_event<event::NodeUnfit>(still));
    REQUIRE(find_sent<Join>(still)->unfit == sick.text);
    REQUIRE(agent.deadline() == t0 + 62s);
  }
  SECTION("fit again, it joins as any other, and starts its workers") {
    const auto fit = agent.step(ChecksDone{2, {small_shm}}, t0 + 32s);
    REQUIRE(find_sent<Join>(fit)->unfit.empty());
    REQUIRE(!agent.deadline());
    REQUIRE(find<StartWorkers>(agent.step(FromCoordinator{placed()}, t0 + 33s)));
  }
  SECTION("the job's end does not wait for the look that is under way") {
    const auto end = agent.step(FromCoordinator{End{verdict(0)}}, t0 + 32s);
    REQUIRE(find<CancelChecks>(end));
    REQUIRE(find<Finish>(end));
  }
  SECTION("the answer of a look that nobody waits for changes nothing") {
    REQUIRE(agent.step(ChecksDone{1, {}}, t0 + 32s).empty());
  }
}

TEST_CASE("where nobody can do without an unfit node the job ends with 65", "[unit][agent_checks]") {
  SECTION("one node") {
    Agent agent = agent_of(with_checks(PreflightLevel::quick, "check", 1));
    static_cast<void>(agent.step(Begin{}, t0));
    const auto left = agent.step(ChecksDone{1, {sick}}, t0);
    REQUIRE(!find_sent<Join>(left));
    REQUIRE(find_sent<Leave>(left)->exit_code == 65);
    REQUIRE(find_sent<Leave>(left)->reason == "this node is unfit: " + sick.text);
    Verdict verdict_65 = verdict(65);
    REQUIRE(find<Finish>(agent.step(FromCoordinator{End{verdict_65}}, t0))->verdict.exit_code == 65);
  }
  SECTION("torchrun's agents decide") {
    Agent agent = agent_of(with_checks(PreflightLevel::quick, "check"));
    static_cast<void>(agent.step(Begin{}, t0));
    static_cast<void>(agent.step(ChecksDone{1, {}}, t0));
    static_cast<void>(agent.step(FromCoordinator{placed(), true}, t0));
    fail_a_worker(agent, t0);
    static_cast<void>(agent.step(FromCoordinator{StopWorkers{}, true}, t0));
    static_cast<void>(agent.step(DescendantsGone{}, t0));
    REQUIRE(find_sent<Leave>(agent.step(ChecksDone{2, {sick}}, t0))->exit_code == 65);
  }
}

TEST_CASE("a node whose workers failed is looked at again, at its level", "[unit][agent_checks]") {
  LaunchConfig config = with_checks(PreflightLevel::quick);
  SECTION("its GPUs too, where they were asked for") {
    config.preflight.gpus_asked = true;
    Agent agent = agent_of(config);
    REQUIRE(!find<RunChecks>(agent.step(Begin{}, t0))->ask_gpus);  // the plan has just asked
    fail_a_worker(agent, t0);
    const auto look = agent.step(DescendantsGone{}, t0);
    REQUIRE(find<RunChecks>(look)->ask_gpus);
    REQUIRE(!find_sent<Join>(look));
    REQUIRE(find_sent<Join>(agent.step(ChecksDone{2, {lost}}, t0))->unfit == lost.text);
  }
  SECTION("no restart waits where nothing can be found that makes it unfit") {
    Agent agent = agent_of(config);
    static_cast<void>(agent.step(Begin{}, t0));
    fail_a_worker(agent, t0);
    const auto look = agent.step(DescendantsGone{}, t0);
    REQUIRE(find<RunChecks>(look));
    REQUIRE(find_sent<Join>(look));
  }
}

TEST_CASE("a health check runs before each Join, and hears of the last failure", "[unit][agent_checks]") {
  Agent agent = agent_of(with_checks(PreflightLevel::quick, "check"));
  REQUIRE(find<RunChecks>(agent.step(Begin{}, t0))->last_failure.empty());
  static_cast<void>(agent.step(ChecksDone{1, {small_shm}}, t0));
  fail_a_worker(agent, t0);
  const auto after_failure = agent.step(DescendantsGone{}, t0);
  REQUIRE(find<RunChecks>(after_failure)->last_failure == "rank 0 on nodeb exited with 1; restart 1 of 3");
  REQUIRE(find_sent<Join>(agent.step(ChecksDone{2, {small_shm}}, t0)));

  static_cast<void>(agent.step(FromCoordinator{placed(1, 1)}, t0));
  static_cast<void>(agent.step(FromCoordinator{StopWorkers{Round{1}}}, t0));
  for (const int local_rank : {0, 1}) {
    static_cast<void>(agent.step(WorkerStarted{LocalRank{local_rank}, 200 + local_rank}, t0));
    static_cast<void>(agent.step(ended(local_rank, -SIGTERM), t0));
  }
  const auto after_change = agent.step(DescendantsGone{}, t0);
  REQUIRE(find<RunChecks>(after_change));
  REQUIRE(find<RunChecks>(after_change)->level == PreflightLevel::off);  // nothing of ours has failed
  REQUIRE(find<RunChecks>(after_change)->health);
  const auto joined = agent.step(ChecksDone{3, {}}, t0);
  REQUIRE(!find_event<event::Preflight>(joined));
  REQUIRE(find_sent<Join>(joined));
}

TEST_CASE("what a health check hears of the last failure has a limit", "[unit][agent_checks]") {
  Agent agent = agent_of(with_checks(PreflightLevel::quick, "check"));
  static_cast<void>(agent.step(Begin{}, t0));
  static_cast<void>(agent.step(ChecksDone{1, {}}, t0));
  static_cast<void>(agent.step(FromCoordinator{placed()}, t0));
  for (const int worker : {0, 1}) static_cast<void>(agent.step(WorkerStarted{LocalRank{worker}, 100 + worker}, t0));
  StopWorkers stop;
  stop.cause = StopCause::worker_failure;
  stop.reason = std::string(last_failure_bytes_max + 1, 'x');
  static_cast<void>(agent.step(FromCoordinator{stop}, t0));
  for (const int worker : {0, 1}) static_cast<void>(agent.step(ended(worker, -SIGTERM), t0));
  REQUIRE(find<RunChecks>(agent.step(DescendantsGone{}, t0))->last_failure == std::string(last_failure_bytes_max, 'x'));
}

TEST_CASE("signals end a job whose node is being looked at", "[unit][agent_checks]") {
  Agent agent = agent_of(with_checks(PreflightLevel::quick, "check"));
  static_cast<void>(agent.step(Begin{}, t0));
  const auto left = agent.step(SignalArrived{SIGINT}, t0);
  REQUIRE(find<CancelChecks>(left));
  REQUIRE(find_sent<Leave>(left)->exit_code == 128 + SIGINT);
  REQUIRE(agent.step(ChecksDone{1, {sick}}, t0).size() == 1);  // told, and nothing is joined
  REQUIRE(find<Finish>(agent.step(FromCoordinator{End{verdict(130)}}, t0)));
}

TEST_CASE("a drain signal ends a job whose nodes are being compared", "[unit][agent_checks]") {
  LaunchConfig config = with_checks(PreflightLevel::full);
  config.drain_signals = {SIGUSR2};
  Agent agent = agent_of(config);
  static_cast<void>(agent.step(Begin{}, t0));
  static_cast<void>(agent.step(ChecksDone{1, {}}, t0));
  Placed both_nodes = placed();
  both_nodes.placement.group_world_size = 2;
  REQUIRE(find<CompareNodes>(agent.step(FromCoordinator{both_nodes}, t0)));
  const auto drained = agent.step(SignalArrived{SIGUSR2}, t0 + 1s);
  REQUIRE(find<CancelChecks>(drained));
  REQUIRE(find_sent<Leave>(drained));
  REQUIRE(find_sent<Leave>(drained)->exit_code == requeue_code);
}

TEST_CASE("nodes that meet only to be looked at compare what was found, fit or not", "[unit][agent_checks]") {
  LaunchConfig config = with_checks(PreflightLevel::full);
  config.preflight.only = true;
  Agent agent = agent_of(config);
  static_cast<void>(agent.step(Begin{}, t0));
  const auto looked_at = agent.step(ChecksDone{1, {lost}}, t0);
  REQUIRE(find_sent<Join>(looked_at)->unfit.empty());
  REQUIRE(find_event<event::Preflight>(looked_at)->in_table);  // and so people read it once
  const auto compared = agent.step(FromCoordinator{placed(4)}, t0);
  REQUIRE(!find<StartWorkers>(compared));
  REQUIRE(find<CompareNodes>(compared)->findings == std::vector{lost});
  SECTION("all are fit") { REQUIRE(find_sent<WorkersSucceeded>(agent.step(NodesCompared{}, t0))->round == Round{4}); }
  SECTION("no answer comes") {
    REQUIRE(find_sent<Leave>(agent.step(Wake{}, t0 + comparison_limit + comparison_slack))->exit_code == 67);
  }
  SECTION("too few are") {
    const auto left = agent.step(NodesCompared{.exit_code = 65, .reason = "too few nodes are fit"}, t0);
    REQUIRE(find_sent<Leave>(left)->exit_code == 65);
    REQUIRE(find_sent<Leave>(left)->ends_job);
  }
  SECTION("one is gone: they meet again") {
    StopWorkers stop;
    stop.round = Round{4};
    const auto again = agent.step(FromCoordinator{stop}, t0);
    REQUIRE(find_sent<Join>(again));
    REQUIRE(find<CancelChecks>(again));
    REQUIRE(agent.step(NodesCompared{}, t0).empty());
  }
}

TEST_CASE("with full checks the ways between the nodes are tried before their workers start", "[unit][agent_checks]") {
  const Finding slow{Check::pairs, FindingLevel::unfit, "nodeb has 2 of 2 pairs bad", "see its cable"};
  Agent agent = agent_of(with_checks(PreflightLevel::full));
  static_cast<void>(agent.step(Begin{}, t0));
  static_cast<void>(agent.step(ChecksDone{1, {small_shm}}, t0));
  Placed both_nodes = placed();
  both_nodes.placement.group_world_size = 2;
  const auto compared = agent.step(FromCoordinator{both_nodes}, t0);
  REQUIRE(find<CompareNodes>(compared));
  REQUIRE(!find<StartWorkers>(compared));

  SECTION("all are good, and the same ways are not tried again") {
    REQUIRE(find<StartWorkers>(agent.step(NodesCompared{}, t0 + 1s))->attempt == "attempt_0");
    fail_a_worker(agent, t0);
    static_cast<void>(agent.step(DescendantsGone{}, t0));
    static_cast<void>(agent.step(ChecksDone{2, {small_shm}}, t0));
    both_nodes.placement.restart_count = 1;
    both_nodes.placement.round = Round{1};
    REQUIRE(find<StartWorkers>(agent.step(FromCoordinator{both_nodes}, t0)));
  }
  SECTION("its clock is wrong: that is said once, and the job runs") {
    const Finding wrong{Check::clock, FindingLevel::warning, "the clock is 90 s behind the coordinator's", ""};
    const auto started = agent.step(NodesCompared{.own = {wrong}}, t0 + 1s);
    REQUIRE(find<StartWorkers>(started));
    REQUIRE(find_event<event::Preflight>(started)->check == "clock");
    static_cast<void>(
        agent.step(FromCoordinator{StopWorkers{Round{0}, StopCause::membership_change, "one came"}}, t0 + 2s));
    for (const int worker : {0, 1}) static_cast<void>(agent.step(WorkerNotStarted{LocalRank{worker}}, t0 + 2s));
    REQUIRE(find_sent<Join>(agent.step(DescendantsGone{}, t0 + 2s)));
    both_nodes.placement.round = Round{1};
    both_nodes.placement.membership_changes = 1;
    const auto again = agent.step(FromCoordinator{both_nodes}, t0 + 2s);
    REQUIRE(std::ranges::count(find<CompareNodes>(again)->findings, wrong) == 1);
    REQUIRE_FALSE(find_event<event::Preflight>(agent.step(NodesCompared{.own = {wrong}}, t0 + 3s)));
  }
  SECTION("they were not tried: the job runs, and it is said") {
    const auto started = agent.step(NodesCompared{.exit_code = 67, .problem = "no answer"}, t0 + 1s);
    REQUIRE(find<StartWorkers>(started));
    REQUIRE(find_event<event::Warning>(started));
  }
  SECTION("this node is condemned: it gives its place up, and tries its ways again") {
    const auto left = agent.step(NodesCompared{.own = {slow}}, t0 + 1s);
    REQUIRE(find_sent<Join>(left)->unfit == slow.text);
    REQUIRE(find_event<event::NodeUnfit>(left));
    REQUIRE(find<CancelChecks>(left));
    const auto again = agent.step(Wake{}, t0 + 31s);
    REQUIRE(find<RunChecks>(again)->ways);
    SECTION("they are as bad as before: nothing is told, and it looks again") {
      Finding as_slow = slow;
      as_slow.text += ", at another rate";
      const auto still = agent.step(ChecksDone{2, {small_shm, as_slow}}, t0 + 32s);
      REQUIRE(find_sent<Join>(still)->unfit == slow.text);
      REQUIRE_FALSE(find_event<event::NodeUnfit>(still));
      REQUIRE_FALSE(find_event<event::Preflight>(still));
      REQUIRE(agent.deadline() == t0 + 62s);
      REQUIRE(find<RunChecks>(agent.step(Wake{}, t0 + 62s))->ways);
    }
    SECTION("they are good: it joins, and they are compared with the others") {
      REQUIRE(find_sent<Join>(agent.step(ChecksDone{2, {small_shm}}, t0 + 32s))->unfit.empty());
      both_nodes.placement.membership_changes = 2;
      const auto met = agent.step(FromCoordinator{both_nodes}, t0 + 33s);
      REQUIRE(find<CompareNodes>(met)->findings == std::vector{small_shm});
      SECTION("condemned once more it lets the others work for twice as long") {
        static_cast<void>(agent.step(NodesCompared{.own = {slow}}, t0 + 34s));
        REQUIRE_FALSE(find<RunChecks>(agent.step(Wake{}, t0 + 64s))->ways);
        const auto unfit = agent.step(ChecksDone{3, {small_shm}}, t0 + 65s);
        REQUIRE(find_sent<Join>(unfit)->unfit == slow.text);
        REQUIRE(find<RunChecks>(agent.step(Wake{}, t0 + 95s))->ways);
      }
      SECTION("and fit, it begins to count anew") {
        REQUIRE(find<StartWorkers>(agent.step(NodesCompared{}, t0 + 34s)));
      }
    }
  }
  SECTION("no answer comes: the job does not wait for ever") {
    REQUIRE(agent.deadline() == t0 + job_comparison_limit + comparison_slack);
    const auto started = agent.step(Wake{}, t0 + job_comparison_limit + comparison_slack);
    REQUIRE(find<CancelChecks>(started));
    REQUIRE(find<StartWorkers>(started));
    REQUIRE(find_event<event::Warning>(started));
  }
  SECTION("the condemned one does not know of it: the job does not wait for ever") {
    REQUIRE(agent.step(NodesCompared{.others_unfit = true}, t0 + 1s).empty());
    REQUIRE(agent.deadline() == t0 + 1s + condemned_patience);
    REQUIRE(find<StartWorkers>(agent.step(Wake{}, t0 + 1s + condemned_patience)));
  }
  SECTION("a job whose nodes cannot be compared is not kept waiting by each change of its members") {
    TimePoint now = t0;
    for (int change = 1; change <= 3; ++change) {
      now += comparing_in_vain_max / 3;
      REQUIRE(find<StartWorkers>(agent.step(NodesCompared{.problem = "no answer"}, now)));
      for (const int worker : {0, 1}) static_cast<void>(agent.step(WorkerStarted{LocalRank{worker}, 100}, now));
      static_cast<void>(agent.step(
          FromCoordinator{StopWorkers{both_nodes.placement.round, StopCause::membership_change, "one came"}}, now));
      for (const int worker : {0, 1}) static_cast<void>(agent.step(ended(worker, -SIGTERM), now));
      REQUIRE(find_sent<Join>(agent.step(DescendantsGone{}, now)));
      both_nodes.placement.round = Round{change};
      both_nodes.placement.membership_changes = change;
      const auto met = agent.step(FromCoordinator{both_nodes}, now);
      REQUIRE((find<CompareNodes>(met) != nullptr) == (change < 3));
      REQUIRE((find<StartWorkers>(met) != nullptr) == (change == 3));
    }
  }
  SECTION("what was not tried is told once, and the job runs") {
    const Finding skipped = nccl_skipped("no NCCL");
    const auto started = agent.step(NodesCompared{.own = {skipped}}, t0 + 1s);
    REQUIRE(find<StartWorkers>(started));
    REQUIRE(find_event<event::Preflight>(started)->level == "skipped");
  }
  SECTION("another one is: no worker starts before the round ends") {
    REQUIRE(agent.step(NodesCompared{.others_unfit = true}, t0 + 1s).empty());
    const auto again = agent.step(FromCoordinator{StopWorkers{Round{0}}}, t0 + 1s);
    REQUIRE(find_sent<Join>(again)->unfit.empty());
    both_nodes.placement.round = Round{1};
    both_nodes.placement.membership_changes = 1;
    REQUIRE(find<CompareNodes>(agent.step(FromCoordinator{both_nodes}, t0 + 2s)));  // other ways
  }
}

}  // namespace torchup
