// One scripted job for all that may become of kept workers, hence longer than 400 lines.
#include <catch2/catch.hpp>

#include "tests/unit/launcher/running_agent.hpp"

namespace torchup {

using namespace agent_test;

namespace {

LaunchConfig three_workers(int max_restarts = 3) {
  LaunchConfig config = two_workers(max_restarts);
  config.local_world_size = 3;
  config.stop_grace = 30s;
  return config;
}

Placed three_placed(std::int64_t round, int restart_count) {
  Placed message = placed(round, restart_count);
  message.placement.world_size = 3;
  return message;
}

std::vector<LocalRank> ranks(std::initializer_list<int> numbers) {
  std::vector<LocalRank> list;
  for (const int number : numbers) list.emplace_back(number);
  return list;
}

StopWorkers stopped(std::int64_t round, StopCause cause = StopCause::worker_failure) {
  StopWorkers message;
  message.round = Round{round};
  message.cause = cause;
  message.reason = "rank 1 is gone";
  return message;
}

/// Three workers that run, pids 100 to 102, of which all have said that they stay but those of `plain`.
struct Keeping {
  explicit Keeping(const LaunchConfig& config = three_workers(), std::vector<int> plain = {})
      : agent{config, AgentIdentity{NodeId{"n"}, "host", {}, {}}} {
    step(Begin{});
    if (!config.preflight.health_check.empty()) step(ChecksDone{1, {}});
    step(FromCoordinator{HostStore{Round{0}}});
    step(StoreOpened{Round{0}, Port{4000}});
    step(FromCoordinator{three_placed(0, 0)});
    for (int i = 0; i < 3; ++i) step(WorkerStarted{LocalRank{i}, 100 + i});
    for (int i = 0; i < 3; ++i) {
      if (std::ranges::find(plain, i) == plain.end()) says(i, WorkerStays{});
    }
  }
  std::vector<AgentAction> step(const AgentEvent& event) { return agent.step(event, now); }
  std::vector<AgentAction> says(int local_rank, WorkerWord word, std::uint64_t beats = 0) {
    return step(WorkerSaid{LocalRank{local_rank}, std::move(word), beats});
  }
  std::vector<AgentAction> parks(int local_rank, std::uint64_t beats = 0) {
    return says(local_rank, WorkerParked{1}, beats);
  }
  /// Rank 1 dies, the others park, and the coordinator orders a restart. Returns what the end of the sweep brings.
  std::vector<AgentAction> until_join(std::uint64_t beats = 0) {
    step(ended(1, -SIGKILL));
    parks(0, beats);
    parks(2, beats);
    step(FromCoordinator{stopped(round)});
    return step(DescendantsGone{});
  }
  /// All of it, with the next round placed and its workers told.
  std::vector<AgentAction> next_round(std::uint64_t beats = 0) {
    until_join(beats);
    ++round;
    auto begun = step(FromCoordinator{three_placed(round, static_cast<int>(round))});
    for (int i = 0; i < 3; ++i) step(WorkerStarted{LocalRank{i}, i == 1 ? 200 + round : 100 + i});
    says(1, WorkerStays{});
    return begun;
  }
  Agent agent;
  TimePoint now = t0;
  std::int64_t round = 0;
};

}  // namespace

TEST_CASE("a local failure asks those that stay to park, at once, and ends the others", "[unit][agent][keep]") {
  Keeping job{three_workers(), {2}};
  const auto died = job.step(ended(1, -SIGKILL));
  REQUIRE(find_sent<WorkersFailed>(died));
  REQUIRE(find<EndRound>(died));
  CHECK(*find<EndRound>(died) == EndRound{ranks({0}), "rank 1 was killed by SIGKILL"});
  CHECK(*find<SignalWorkers>(died) == SignalWorkers{SIGTERM, true, ranks({2})});
  CHECK_FALSE(find<SweepDescendants>(job.parks(0)));
  CHECK(*find<SweepDescendants>(job.step(ended(2, -SIGTERM))) == SweepDescendants{0s, 30s, ranks({0})});
}

TEST_CASE("an unfit node is looked at again in time, whatever becomes of who has parked there", "[unit][agent][keep]") {
  LaunchConfig config = three_workers();
  config.terms.min_nodes = config.terms.max_nodes = 2;
  config.preflight.health_check = "check";
  Keeping job{config};
  REQUIRE(find<RunChecks>(job.until_join()));
  const Finding sick{Check::health, FindingLevel::unfit, "--health-check ended with 3: no mount", ""};
  REQUIRE(find_sent<Join>(job.step(ChecksDone{2, {sick}}))->unfit == sick.text);
  SECTION("it ends") { job.step(ended(0, -SIGKILL)); }
  SECTION("it has left, and is being killed") { REQUIRE(find<KillWorkers>(job.says(0, WorkerLeaves{}))); }
  REQUIRE(job.agent.deadline() == t0 + unfit_look_interval);
  job.now += unfit_look_interval;
  const auto again = job.step(Wake{});
  REQUIRE(find<RunChecks>(again));
  REQUIRE_FALSE(find_sent<Leave>(again));
}

TEST_CASE("who has parked has its place told, and the others are started", "[unit][agent][keep]") {
  Keeping job;
  const auto again = job.until_join();
  REQUIRE(find_sent<Join>(again));
  CHECK(*find_event<event::Restarting>(again) == event::Restarting{2, "rank 1 is gone", 1, 2, 3});
  CHECK(to_text(*find_event<event::Restarting>(again))->text ==
        "restart 1 of 3 after rank 1 is gone: 2 of 3 processes kept");
  const auto begun = job.step(FromCoordinator{three_placed(1, 1)});
  CHECK(find<StartWorkers>(begun)->kept == ranks({0, 2}));
  SECTION("and is kept once more") {
    for (int i = 0; i < 3; ++i) job.step(WorkerStarted{LocalRank{i}, i == 1 ? 201 : 100 + i});
    CHECK(find<EndRound>(job.step(ended(1, 1)))->workers == ranks({0, 2}));
  }
  SECTION("and may end well") {
    for (int i = 0; i < 3; ++i) job.step(WorkerStarted{LocalRank{i}, i == 1 ? 201 : 100 + i});
    job.step(ended(0, 0));
    job.step(ended(1, 0));
    const auto over = job.step(ended(2, 0));
    CHECK(find_sent<WorkersSucceeded>(over));
    CHECK(*find<SweepDescendants>(over) == SweepDescendants{leftover_patience, 30s});
  }
  SECTION("unless the round is over before: it waits on, and is told nothing") {
    job.step(WorkerStarted{LocalRank{1}, 201});
    const auto over = job.step(FromCoordinator{stopped(1, StopCause::membership_change)});
    CHECK(find<CancelStarts>(over));
    CHECK_FALSE(find<EndRound>(over));
    CHECK(find<SignalWorkers>(over)->workers == ranks({1}));
    job.step(ended(1, -SIGTERM));
    job.step(WorkerNotStarted{LocalRank{0}});
    CHECK(find<SweepDescendants>(job.step(WorkerNotStarted{LocalRank{2}}))->kept == ranks({0, 2}));
  }
  SECTION("nor is it killed with one whose start comes late") {
    job.step(FromCoordinator{stopped(1, StopCause::membership_change)});
    job.now += 30s;
    CHECK(find<CancelStarts>(job.step(Wake{}))->killed);
    CHECK(*find<KillWorkers>(job.step(WorkerStarted{LocalRank{1}, 201})) == KillWorkers{ranks({1}), false});
  }
  SECTION("or is told both, where its place was under way") {
    job.step(WorkerStarted{LocalRank{1}, 201});
    job.step(FromCoordinator{stopped(1, StopCause::membership_change)});
    CHECK(find<EndRound>(job.step(WorkerStarted{LocalRank{0}, 100}))->workers == ranks({0}));
  }
  SECTION("and costs a restart where it cannot be told") {
    job.step(WorkerStarted{LocalRank{1}, 201});
    job.step(WorkerNotStarted{LocalRank{0}});
    CHECK(find<KillWorkers>(job.says(0, WorkerLeaves{}))->workers == ranks({0}));
    CHECK(find_sent<WorkersFailed>(job.step(ended(0, -SIGKILL))));
  }
}

TEST_CASE("a membership change keeps those that stay and counts no restart", "[unit][agent][keep]") {
  Keeping job;
  const auto over = job.step(FromCoordinator{stopped(0, StopCause::membership_change)});
  CHECK(find<EndRound>(over)->workers == ranks({0, 1, 2}));
  CHECK_FALSE(find<SignalWorkers>(over));
  job.parks(0);
  job.parks(1);
  CHECK(find<SweepDescendants>(job.parks(2))->kept == ranks({0, 1, 2}));
  const auto again = job.step(DescendantsGone{});
  CHECK(find_sent<Join>(again));
  CHECK_FALSE(find_event<event::Restarting>(again));
  CHECK(find<StartWorkers>(job.step(FromCoordinator{three_placed(1, 0)}))->kept == ranks({0, 1, 2}));
}

TEST_CASE("who does not park within the grace is killed, and the others are kept", "[unit][agent][keep]") {
  Keeping job;
  job.step(ended(1, -SIGKILL));
  job.parks(0);
  REQUIRE(job.agent.deadline() == t0 + 30s);
  job.now = t0 + 30s;
  const auto late = job.step(Wake{});
  CHECK(*find<KillWorkers>(late) == KillWorkers{ranks({2}), false});
  CHECK_FALSE(find<SweepDescendants>(job.parks(2)));  // too late
  CHECK(find<SweepDescendants>(job.step(ended(2, -SIGKILL)))->kept == ranks({0}));
}

TEST_CASE("nobody is kept where no round follows", "[unit][agent][keep]") {
  SECTION("without a restart left") {
    Keeping job{three_workers(0)};
    const auto died = job.step(ended(1, -SIGKILL));
    CHECK_FALSE(find<EndRound>(died));
    CHECK(find<SignalWorkers>(died)->workers == ranks({0, 2}));
  }
  SECTION("after the last one") {
    Keeping job{three_workers(1)};
    job.next_round();
    const auto died = job.step(ended(1, -SIGKILL));
    CHECK_FALSE(find<EndRound>(died));
    CHECK(find<SignalWorkers>(died)->workers == ranks({0, 2}));
  }
  SECTION("when this node is fenced") {
    Keeping job;
    if (GENERATE(false, true)) {
      job.step(FromCoordinator{stopped(0, StopCause::membership_change)});
      job.parks(0);
    }
    const auto over = job.step(FromCoordinator{stopped(0, StopCause::fenced)});
    CHECK_FALSE(find<EndRound>(over));
    CHECK_FALSE(find<SignalWorkers>(over));
    CHECK(*find<KillWorkers>(over) == KillWorkers{ranks({0, 1, 2}), true});
  }
  SECTION("by torchrun's agents") {
    Keeping job;
    const auto over = job.step(FromCoordinator{stopped(0, StopCause::membership_change), true});
    CHECK_FALSE(find<EndRound>(over));
    CHECK(find<SignalWorkers>(over)->workers == ranks({0, 1, 2}));
  }
  SECTION("for a signal, the verdict, the time limit") {
    LaunchConfig config = three_workers();
    config.timeout = 60s;
    Keeping job{config};
    const int which = GENERATE(0, 1, 2, 3);
    if (which == 3) job.now = t0 + 60s;
    const auto over = which == 0   ? job.step(SignalArrived{SIGTERM})
                      : which == 1 ? job.step(SignalArrived{SIGINT})
                      : which == 2 ? job.step(FromCoordinator{End{verdict(1)}})
                                   : job.step(Wake{});
    CHECK_FALSE(find<EndRound>(over));
    CHECK(find<SignalWorkers>(over)->workers == ranks({0, 1, 2}));
    CHECK(find<SignalWorkers>(over)->number == (which == 1 ? SIGINT : SIGTERM));
  }
}

TEST_CASE("who is parked ends with the job, whatever it waits for", "[unit][agent][keep]") {
  LaunchConfig config = three_workers();
  config.timeout = 60s;
  Keeping job{config};
  const auto end_it = [&job] {
    const int which = GENERATE(0, 1, 2);
    if (which == 2) job.now += 60s;
    return which == 0   ? job.step(SignalArrived{SIGTERM})
           : which == 1 ? job.step(FromCoordinator{End{verdict(1)}})
                        : job.step(Wake{});
  };
  const auto finish = [&job](int local_rank) {
    job.step(ended(local_rank, -SIGTERM));
    job.step(FromCoordinator{End{verdict(1)}});
    const auto last = job.step(DescendantsGone{});
    CHECK(find<Finish>(last));
    CHECK_FALSE(find_event<event::AttemptEnded>(last));
  };
  job.step(ended(1, -SIGKILL));
  job.parks(0);
  SECTION("the others, with whom it is signalled") {
    const auto over = job.step(SignalArrived{SIGTERM});
    CHECK(find<SignalWorkers>(over)->workers == ranks({0, 2}));
    CHECK(job.agent.deadline() == t0 + 30s);
  }
  SECTION("the others, with whom Ctrl-C reaches it") {
    const auto over = job.step(SignalArrived{SIGINT});
    CHECK(*find<SignalWorkers>(over) == SignalWorkers{SIGINT, true, ranks({0, 2})});
  }
  SECTION("the sweep, after which it is signalled") {
    job.step(ended(2, 1));
    CHECK_FALSE(find<SignalWorkers>(job.step(FromCoordinator{End{verdict(1)}})));
    const auto gone = job.step(DescendantsGone{});
    CHECK(find<SignalWorkers>(gone)->workers == ranks({0}));
    CHECK_FALSE(find<Finish>(gone));
    CHECK(*find<SweepDescendants>(job.step(ended(0, -SIGTERM))) == SweepDescendants{0s, 30s});
    finish(0);
  }
  SECTION("the coordinator's word") {
    job.step(ended(2, 1));
    CHECK(find_event<event::AttemptEnded>(job.step(DescendantsGone{})));
    const auto over = end_it();
    CHECK(find<SignalWorkers>(over)->workers == ranks({0}));
    finish(0);
  }
  SECTION("its place") {
    job.step(ended(2, 1));
    job.step(FromCoordinator{stopped(0)});
    CHECK(find_sent<Join>(job.step(DescendantsGone{})));
    const auto over = end_it();
    CHECK(find<SignalWorkers>(over)->workers == ranks({0}));
    CHECK_FALSE(find<Finish>(over));
    finish(0);
  }
  SECTION("its place, and is killed where that does not end it") {
    job.step(ended(2, 1));
    job.step(FromCoordinator{stopped(0)});
    job.step(DescendantsGone{});
    job.step(SignalArrived{SIGTERM});
    job.now += 30s;
    CHECK(*find<KillWorkers>(job.step(Wake{})) == KillWorkers{ranks({0}), true});
  }
}

TEST_CASE("who is parked and dies is replaced, before the next round begins", "[unit][agent][keep]") {
  Keeping job;
  job.until_join();
  SECTION("by itself") { job.step(ended(0, 1)); }
  SECTION("or because it cannot be told its place") {
    CHECK(find<KillWorkers>(job.says(0, WorkerLeaves{}))->workers == ranks({0}));
    CHECK_FALSE(find<StartWorkers>(job.step(FromCoordinator{three_placed(1, 1)})));
    CHECK(find<StartWorkers>(job.step(ended(0, -SIGKILL)))->kept == ranks({2}));
    return;
  }
  CHECK(find<StartWorkers>(job.step(FromCoordinator{three_placed(1, 1)}))->kept == ranks({2}));
}

TEST_CASE("who leaves while it is to park ends as any other", "[unit][agent][keep]") {
  Keeping job;
  job.step(ended(1, -SIGKILL));
  CHECK(*find<SignalWorkers>(job.says(0, WorkerLeaves{})) == SignalWorkers{SIGTERM, true, ranks({0})});
  job.says(0, WorkerStays{});
  CHECK_FALSE(find<SweepDescendants>(job.parks(0)));
  job.parks(2);
  CHECK(find<SweepDescendants>(job.step(ended(0, -SIGTERM)))->kept == ranks({2}));
}

TEST_CASE("what a worker raised is no part of our text", "[unit][agent][keep]") {
  Keeping job;
  const auto actions = job.says(2, WorkerRaised{"ValueError: secret"});
  const auto* notice = find_event<event::Notice>(actions);
  REQUIRE(notice);
  CHECK(notice->text.find("secret") == std::string::npos);
  CHECK(notice->said == "ValueError: secret");
}

TEST_CASE("who raises is blamed when no other cause shows in 250 ms", "[unit][agent][keep]") {
  Keeping job;
  CHECK(deeds(job.says(2, WorkerRaised{"ValueError"})) == 0);
  job.now += 100ms;
  CHECK(deeds(job.says(0, WorkerRaised{"Connection closed by peer"})) == 0);
  REQUIRE(job.agent.deadline() == t0 + 250ms);
  SECTION("the first one, and no other") {
    job.now = t0 + 250ms;
    CHECK(*find<BlameWorker>(job.step(Wake{})) == BlameWorker{LocalRank{2}});
    CHECK_FALSE(find<BlameWorker>(job.step(Wake{})));
    CHECK(find<EndRound>(job.step(ended(2, 1)))->workers == ranks({0, 1}));
  }
  SECTION("unless that one goes on for as long as a stopped one may: others do not wait for it for ever") {
    job.now = t0 + 250ms;
    job.step(Wake{});
    CHECK(job.agent.deadline() == t0 + 250ms + three_workers().stop_grace);
    job.now = *job.agent.deadline() - 1ns;
    CHECK_FALSE(find<BlameWorker>(job.step(Wake{})));
    job.now += 1ns;
    CHECK(*find<BlameWorker>(job.step(Wake{})) == BlameWorker{LocalRank{0}});
  }
  SECTION("but not where a worker dies") {
    CHECK(find<EndRound>(job.step(ended(1, -SIGKILL)))->workers == ranks({0, 2}));
    job.now = t0 + 1s;
    CHECK_FALSE(find<BlameWorker>(job.step(Wake{})));
  }
  SECTION("nor where another node is the cause") {
    CHECK(find<EndRound>(job.step(FromCoordinator{stopped(0)}))->workers == ranks({0, 1, 2}));
  }
  SECTION("the next one where the first thinks better of it") {
    job.now = t0 + 250ms;
    job.step(Wake{});
    job.says(2, WorkerStays{});
    job.now = *job.agent.deadline();
    CHECK(*find<BlameWorker>(job.step(Wake{})) == BlameWorker{LocalRank{0}});
  }
}

TEST_CASE("who raises what another's end has caused waits 2 s for that end", "[unit][agent][keep]") {
  Keeping job;
  CHECK(deeds(job.says(0, WorkerRaised{"gloo: Connection closed by peer [127.0.0.1]:4711"})) == 0);
  REQUIRE(job.agent.deadline() == t0 + 2s);
  SECTION("it shows late: a busy machine ends that process slowly") {
    job.now = t0 + 2s - 1ns;
    CHECK_FALSE(find<BlameWorker>(job.step(Wake{})));
    CHECK(find<EndRound>(job.step(ended(1, -SIGKILL)))->workers == ranks({0, 2}));
  }
  SECTION("it does not show") {
    job.now = t0 + 2s;
    CHECK(*find<BlameWorker>(job.step(Wake{})) == BlameWorker{LocalRank{0}});
  }
  SECTION("who raises a fault of its own meanwhile is blamed before it") {
    job.now = t0 + 1s;
    job.says(2, WorkerRaised{"ValueError"});
    REQUIRE(job.agent.deadline() == t0 + 1s + 250ms);
    job.now = t0 + 1s + 250ms;
    CHECK(*find<BlameWorker>(job.step(Wake{})) == BlameWorker{LocalRank{2}});
  }
  SECTION("however late it does") {
    job.now = t0 + 2s - 1ns;
    job.says(2, WorkerRaised{"ValueError"});
    REQUIRE(job.agent.deadline() == t0 + 2s - 1ns + 250ms);
    job.now = t0 + 2s;
    CHECK_FALSE(find<BlameWorker>(job.step(Wake{})));
    job.now = *job.agent.deadline();
    CHECK(*find<BlameWorker>(job.step(Wake{})) == BlameWorker{LocalRank{2}});
  }
}

TEST_CASE("who raises where nobody is kept hears at once", "[unit][agent][keep]") {
  Keeping job{three_workers(), {0}};
  CHECK(*find<BlameWorker>(job.says(0, WorkerRaised{"ValueError"})) == BlameWorker{LocalRank{0}});
  job.says(2, WorkerRaised{"ValueError"});
  CHECK(*find<BlameWorker>(job.step(SignalArrived{SIGTERM})) == BlameWorker{LocalRank{2}});
}

TEST_CASE("nobody is kept a third time without a step of its own", "[unit][agent][keep]") {
  Keeping job;
  job.next_round(5);
  job.next_round(5);
  job.step(ended(1, -SIGKILL));
  SECTION("it ends as any other") {
    CHECK(*find<SignalWorkers>(job.parks(0, 5)) == SignalWorkers{SIGTERM, true, ranks({0})});
    CHECK_FALSE(find<SignalWorkers>(job.parks(2, 6)));
    CHECK(find<SweepDescendants>(job.step(ended(0, -SIGTERM)))->kept == ranks({2}));
  }
  SECTION("whoever has ended one is kept") {
    job.parks(0, 6);
    CHECK(find<SweepDescendants>(job.parks(2, 7))->kept == ranks({0, 2}));
  }
}

TEST_CASE("who does not read its place is killed, for it computes in no round", "[unit][agent][keep]") {
  Keeping job;
  job.next_round();
  const auto closes = [&](int local_rank, bool deaf) {
    return job.step(WorkerSaid{.local_rank = LocalRank{local_rank}, .word = WorkerLeaves{}, .deaf = deaf});
  };
  SECTION("the channel's end says so") { CHECK(find<KillWorkers>(closes(0, true))->workers == ranks({0})); }
  SECTION("not where it was read") { CHECK_FALSE(find<KillWorkers>(closes(0, false))); }
  SECTION("nor one that was started for this round") { CHECK_FALSE(find<KillWorkers>(closes(1, true))); }
}

TEST_CASE("words that nobody asked for change nothing", "[unit][agent][keep]") {
  Keeping job;
  CHECK(job.parks(0).empty());
  CHECK(job.says(0, WorkerStays{}).empty());
  CHECK(find<EndRound>(job.step(ended(1, -SIGKILL)))->workers == ranks({0, 2}));
  job.parks(0);
  CHECK(job.parks(0).empty());
  CHECK(job.says(0, WorkerStays{}).empty());
  CHECK(job.says(2, WorkerLooked{1, 2}).empty());
  CHECK(job.says(0, WorkerRaised{"late"}).empty());
  CHECK(find<SweepDescendants>(job.parks(2))->kept == ranks({0, 2}));
}

TEST_CASE("the steps of earlier rounds are no progress of the next", "[unit][agent][keep]") {
  Keeping job{three_workers()};
  job.next_round(3);
  WorkerSigns signs{
      .local_rank = LocalRank{0}, .watched = true, .beats = 3, .beat_ns = -1};  // before this job's beginning, t0
  const auto progressed = [&] {
    StepsSeen seen;
    StepSample& sample = seen.samples.emplace_back();
    sample.signs = signs;
    job.now += 1s;
    const auto actions = job.step(seen);
    const auto* const report = find<ReportProgress>(actions);
    REQUIRE(report);
    return report->report.progressed;
  };
  REQUIRE_FALSE(progressed());
  signs.beats = 4;
  signs.beat_ns = std::chrono::nanoseconds{job.now.time_since_epoch()}.count();
  REQUIRE(progressed());
}

TEST_CASE("a kept worker that nothing can kill holds up no end", "[unit][agent][keep]") {
  Keeping job;
  job.step(ended(1, -SIGKILL));
  job.parks(0);
  job.parks(2);
  job.step(FromCoordinator{stopped(0)});
  End end{verdict(130)};
  end.verdict.kill_now = true;
  job.step(FromCoordinator{end});
  CHECK(find<KillWorkers>(job.step(DescendantsGone{}))->workers == ranks({0, 2}));
  REQUIRE(job.agent.deadline() == job.now + unkillable_after);
  job.step(ended(0, -SIGKILL));
  job.now += unkillable_after;
  CHECK(find_event<event::WorkerAbandoned>(job.step(Wake{}))->worker.local_rank == LocalRank{2});
  CHECK(find<Finish>(job.step(DescendantsGone{}))->verdict.exit_code == 1);
}

TEST_CASE("a worker that has left its parking place and that nothing can kill holds up no round",
          "[unit][agent][keep]") {
  Keeping job;
  job.until_join();
  CHECK(find<KillWorkers>(job.says(0, WorkerLeaves{}))->workers == ranks({0}));
  CHECK(deeds(job.step(FromCoordinator{three_placed(1, 1)})) == 0);
  REQUIRE(job.agent.deadline() == job.now + unkillable_after);
  SECTION("it goes after all") {
    const auto begun = job.step(ended(0, -SIGKILL));
    CHECK(find<StartWorkers>(begun)->kept == ranks({2}));
    CHECK_FALSE(job.agent.deadline());
  }
  SECTION("it stays, however often the rounds change") {
    const auto gives_up_at = job.agent.deadline();
    job.now += unkillable_after - 1s;
    job.step(FromCoordinator{stopped(1, StopCause::membership_change)});
    job.step(FromCoordinator{three_placed(2, 1)});
    REQUIRE(job.agent.deadline() == gives_up_at);
    job.step(FromCoordinator{stopped(2, StopCause::membership_change)});
    job.now += 1s;
    CHECK(find_event<event::WorkerAbandoned>(job.step(Wake{})));
  }
  SECTION("it goes between two rounds") {
    job.step(FromCoordinator{stopped(1, StopCause::membership_change)});
    job.step(ended(0, -SIGKILL));
    CHECK_FALSE(job.agent.deadline());
    CHECK(find<StartWorkers>(job.step(FromCoordinator{three_placed(2, 1)}))->kept == ranks({2}));
  }
  SECTION("it stays: this node ends, and the others hear why") {
    job.now += unkillable_after;
    const auto over = job.step(Wake{});
    CHECK(find_event<event::WorkerAbandoned>(over)->worker.local_rank == LocalRank{0});
    CHECK(find_sent<Leave>(over)->reason == "a worker cannot be killed");
    job.step(FromCoordinator{End{verdict(1)}});
    job.step(ended(2, -SIGTERM));
    CHECK(find<Finish>(job.step(DescendantsGone{}))->verdict.exit_code == 1);
  }
}

TEST_CASE("the job is not over before a worker has ended that has left its parking place", "[unit][agent][keep]") {
  Keeping job{three_workers(), {1, 2}};
  job.step(ended(1, -SIGKILL));
  job.parks(0);
  job.step(FromCoordinator{stopped(0)});
  job.step(ended(2, -SIGTERM));
  CHECK(find_sent<Join>(job.step(DescendantsGone{})));
  CHECK(find<KillWorkers>(job.says(0, WorkerLeaves{}))->workers == ranks({0}));
  if (GENERATE(false, true)) job.step(FromCoordinator{three_placed(1, 1)});
  CHECK_FALSE(find<Finish>(job.step(FromCoordinator{End{verdict(0)}})));
  REQUIRE(job.agent.deadline() == job.now + unkillable_after);
  int code = 0;
  SECTION("as one that was killed does") {
    CHECK(find_event<event::WorkerExited>(job.step(ended(0, -SIGKILL)))->worker.local_rank == LocalRank{0});
  }
  SECTION("or it is known that nothing ends it, which is no success") {
    job.now += unkillable_after;
    CHECK(find_event<event::WorkerAbandoned>(job.step(Wake{}))->worker.local_rank == LocalRank{0});
    code = 1;
  }
  CHECK(find<Finish>(job.step(DescendantsGone{}))->verdict.exit_code == code);
}

}  // namespace torchup
