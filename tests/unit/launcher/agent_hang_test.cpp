#include <catch2/catch.hpp>

#include "tests/unit/launcher/hanging_agent.hpp"

namespace torchup {

using namespace hanging_agent;

TEST_CASE("a hang is told, and nobody is touched who need not be", "[unit][agent][hang]") {
  Running job;
  const RankStacks stacks{.rank = Rank{1}, .helper_wrote = true};
  static_cast<void>(job.agent.step(LooksTaken{7, {looks::still(0), looks::still(1)}, {stacks}}, t0));
  const auto actions = job.agent.step(FromCoordinator{told(found(1))}, t0 + 1s);
  const auto* const tell = find<TellHang>(actions);
  REQUIRE(tell);
  REQUIRE((tell->report.number == 4 && !tell->report.asked && tell->report.silence == 64s));
  REQUIRE(tell->report.on_hang == OnHang::report);
  REQUIRE(tell->report.looks.size() == 2);
  REQUIRE_FALSE(tell->own.has_value());  // this is group rank 0's node
  REQUIRE(tell->stacks == std::vector{stacks});
  REQUIRE(*find_event<event::WorkerHung>(actions) == event::WorkerHung{{Rank{1}, LocalRank{1}, 101}, summary});
  REQUIRE_FALSE(find<AbortWorkers>(actions));
  const auto over = job.agent.step(told(hang::Over{4, 182s + 900ms}), t0 + 2s);
  REQUIRE(*find_event<event::HangOver>(over) == event::HangOver{4, 182.9});
  SECTION("the stacks are of that look alone") {
    REQUIRE(find<TellHang>(job.agent.step(told(found(1)), t0 + 3s))->stacks.empty());
  }
  SECTION("and are not kept for ever") {
    static_cast<void>(job.agent.step(LooksTaken{8, {looks::still(0)}, {stacks}}, t0 + 10s));
    static_cast<void>(job.agent.step(Wake{}, t0 + 10s + stacks_kept));
    REQUIRE(find<TellHang>(job.agent.step(told(found(1)), t0 + 30s))->stacks.empty());
  }
}

TEST_CASE("what is told of a worker that hangs has the program's words apart", "[unit][agent][hang]") {
  Running job;
  hang::Found one = found(1);
  one.verdict->collective = AwaitedCollective{
      .description = "tenant", .number = 7, .operation = "all_reduce", .waiting = RankSet{looks::list({0})}};
  const auto actions = job.agent.step(FromCoordinator{told(one)}, t0 + 1s);
  REQUIRE(*find_event<event::WorkerHung>(actions) ==
          event::WorkerHung{{Rank{1}, LocalRank{1}, 101}, summary + "; rank 0 waits for it", "all_reduce #7 (tenant)"});
}

TEST_CASE("a job that ends well has got on, though nobody has told of its progress", "[unit][agent][hang]") {
  Running job;
  static_cast<void>(job.agent.step(told(found(1)), t0 + 1s));
  SECTION("of all that was told it is said once") {
    const auto ends = job.agent.step(FromCoordinator{End{verdict(0)}}, t0 + 3s);
    REQUIRE(*find_event<event::HangOver>(ends) == event::HangOver{4, 66});
  }
  SECTION("also where it was said before") {
    static_cast<void>(job.agent.step(told(hang::Over{4, 65s}), t0 + 2s));
    REQUIRE_FALSE(find_event<event::HangOver>(job.agent.step(FromCoordinator{End{verdict(0)}}, t0 + 3s)));
  }
  SECTION("and one that fails has not") {
    REQUIRE_FALSE(find_event<event::HangOver>(job.agent.step(FromCoordinator{End{verdict(1)}}, t0 + 3s)));
  }
}

TEST_CASE("what a coordinator that has begun anew tells has other numbers than what was told before",
          "[unit][agent][hang]") {
  Running job;
  const auto number_of = [&](std::uint64_t number, bool asked = false) {
    hang::Found one = found(1);
    one.number = number;
    one.asked = asked;
    return find<TellHang>(job.agent.step(told(one), t0 + 1s))->report.number;
  };
  REQUIRE(number_of(0) == 0);
  REQUIRE(number_of(2) == 2);  // the one between was told before this node came
  REQUIRE(number_of(0) == 3);
  const auto over = job.agent.step(told(hang::Over{0, 70s}), t0 + 2s);
  REQUIRE(*find_event<event::HangOver>(over) == event::HangOver{3, 70});
  REQUIRE(number_of(1, true) == 4);
}

TEST_CASE("of busy and debugged ranks no event says that they hang", "[unit][agent][hang]") {
  Running job;
  const auto actions =
      job.agent.step(told(found(1, HangAction::none, GENERATE(HangKind::busy, HangKind::debugged))), t0);
  REQUIRE(find<TellHang>(actions));
  REQUIRE_FALSE(find_event<event::WorkerHung>(actions));
}

TEST_CASE("a rank that hangs is aborted, and killed where that does not end it", "[unit][agent][hang]") {
  LaunchConfig config = given(60s, 1);
  config.terms.on_hang = OnHang::restart;
  Running job{config};
  const TimePoint now = t0 + 100s;
  const auto hung = job.agent.step(told(found(1, HangAction::restart)), now);
  REQUIRE(find<AbortWorkers>(hung)->workers == std::vector{LocalRank{1}});
  SECTION("its failure says so, and is the cause") {
    const auto died = job.agent.step(ended(1, -SIGABRT), now);
    const auto* const failed = find_sent<WorkersFailed>(died);
    REQUIRE(failed->failures.front().message == summary);
    REQUIRE((failed->may_restart && !failed->failures.front().consequence));
    REQUIRE(find_event<event::WorkerExited>(died)->end == WorkerEnd::failed);
  }
  SECTION("whatever its handler of SIGABRT makes of it") {
    const auto died = job.agent.step(ended(1, GENERATE(0, 75)), now);
    REQUIRE(find_sent<WorkersFailed>(died)->failures.front().rank == Rank{1});
    REQUIRE(find_event<event::WorkerExited>(died)->end == WorkerEnd::failed);
    REQUIRE_FALSE(find_event<event::StateSaved>(died));
  }
  SECTION("also when another is gone before it: of its end") {
    const auto other = job.agent.step(ended(0, 1), now + 1s);
    REQUIRE(find_event<event::WorkerExited>(other)->consequence);
    REQUIRE_FALSE(find_sent<WorkersFailed>(other));
    const auto died = job.agent.step(ended(1, -SIGKILL), now + 10s);
    const auto* const failed = find_sent<WorkersFailed>(died);
    REQUIRE(failed->failures.size() == 2);
    REQUIRE(failed->failures.at(root_cause(failed->failures)).rank == Rank{1});
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

TEST_CASE("abort forbids the restart", "[unit][agent][hang]") {
  LaunchConfig config = two_workers(3);
  config.terms.on_hang = OnHang::abort;
  Running job{config};
  static_cast<void>(job.agent.step(told(found(1, HangAction::abort)), t0));
  REQUIRE_FALSE(find_sent<WorkersFailed>(job.agent.step(ended(1, -SIGABRT), t0))->may_restart);
}

TEST_CASE("what was decided of an attempt says nothing of the next", "[unit][agent][hang]") {
  LaunchConfig config = two_workers(3);
  Running job{config};
  static_cast<void>(job.agent.step(told(found(1, HangAction::restart)), t0));
  static_cast<void>(job.agent.step(ended(1, -SIGABRT), t0));
  static_cast<void>(job.agent.step(FromCoordinator{StopWorkers{Round{0}, StopCause::worker_failure, "x"}}, t0));
  static_cast<void>(job.agent.step(ended(0, -SIGTERM), t0));
  static_cast<void>(job.agent.step(DescendantsGone{}, t0));
  REQUIRE_FALSE(find<TellHang>(job.agent.step(told(found(1, HangAction::restart)), t0)));  // late
  static_cast<void>(job.agent.step(FromCoordinator{placed(1, 1)}, t0));
  job.start();
  const auto failed = job.agent.step(ended(0, 1), t0 + 1s);
  REQUIRE_FALSE(find_event<event::WorkerExited>(failed)->consequence);
  REQUIRE(find_sent<WorkersFailed>(failed)->may_restart);
}

TEST_CASE("another node shows its own ranks, and ends its own culprits", "[unit][agent][hang]") {
  SecondNode job;
  SECTION("whose culprit is elsewhere") {
    const auto actions = job.agent.step(told(found(1, HangAction::abort)), t0);
    REQUIRE(find<TellHang>(actions)->own == looks::ranks("2-3"));
    REQUIRE_FALSE(find_event<event::WorkerHung>(actions));
    REQUIRE_FALSE(find<AbortWorkers>(actions));
    const auto victim = job.agent.step(ended(0, 1), t0 + 1s);
    REQUIRE(find_event<event::WorkerExited>(victim)->consequence);
    REQUIRE_FALSE(find_sent<WorkersFailed>(victim));
    const TimePoint due = t0 + 1s + cause_patience + abort_patience;
    REQUIRE_FALSE(find_sent<WorkersFailed>(job.agent.step(Wake{}, due - 1ns)));
    REQUIRE_FALSE(find_sent<WorkersFailed>(job.agent.step(Wake{}, due))->may_restart);
  }
  SECTION("whose culprit is here") {
    const auto actions = job.agent.step(told(found(3, HangAction::abort)), t0);
    REQUIRE(find<AbortWorkers>(actions)->workers == std::vector{LocalRank{1}});
  }
  SECTION("who asks here sees all of them") {
    static_cast<void>(job.agent.step(SignalArrived{SIGQUIT}, t0));
    hang::Found page = found(1);
    page.asked = true;
    REQUIRE_FALSE(find<TellHang>(job.agent.step(told(page), t0))->own.has_value());
  }
  SECTION("where the network is") {
    hang::Found all = found(0, HangAction::abort, HangKind::network);
    all.verdict->culprits.clear();
    all.ended = looks::list({0, 1, 2, 3});
    const auto actions = job.agent.step(told(all), t0);
    REQUIRE(find<AbortWorkers>(actions)->workers == both);
    REQUIRE_FALSE(find_event<event::WorkerHung>(actions));
  }
}

TEST_CASE("news that cannot be read are no reason to end", "[unit][agent][hang]") {
  Running job;
  const auto actions = job.agent.step(FromCoordinator{HangTold{"\xff\xff", true}}, t0);
  REQUIRE(deeds(actions) == 0);
  REQUIRE(find_event<event::Notice>(actions));
}

TEST_CASE("a straggler is told where it is, and by one node of all", "[unit][agent][hang]") {
  const auto told_here = [](Agent& agent, std::optional<Rank> rank, const std::string& host) {
    StragglerFound late;
    late.rank = rank;
    late.host = host;
    const auto actions = agent.step(told(late), t0);
    const auto* const event = find_event<event::StragglerFound>(actions);
    REQUIRE(event);
    REQUIRE(event->found == late);
    return event->told_here;
  };
  Running first;
  REQUIRE(told_here(first.agent, Rank{3}, "elsewhere"));
  SecondNode second;
  REQUIRE(told_here(second.agent, Rank{3}, "host"));
  REQUIRE_FALSE(told_here(second.agent, Rank{1}, "elsewhere"));
  REQUIRE(told_here(second.agent, std::nullopt, "host"));
  REQUIRE_FALSE(told_here(second.agent, std::nullopt, "elsewhere"));
  const auto over = second.agent.step(told(StragglerOver{Rank{3}, "host"}), t0);
  REQUIRE(find_event<event::StragglerOver>(over)->told_here);
}

TEST_CASE("arrivals are answered in the terms of the coordinator's clock", "[unit][agent][hang]") {
  Running job;
  REQUIRE(*find<TakeLooks>(job.agent.step(FromCoordinator{Examine{5, false, true}}, t0)) ==
          TakeLooks{5, both, false, true});
  ArrivalsSeen seen;
  seen.number = 5;
  for (int rank = 0; rank < 2; ++rank) {
    RankArrivals& one = seen.ranks.emplace_back();
    one.rank = Rank{rank};
    for (int i = 0; i < 40; ++i) {
      Arrival& arrival = one.arrivals.emplace_back();
      arrival.call = looks::call("0", i);
      arrival.call.created_ns = std::int64_t{100'000'000} * (i + 1) + rank * 30'000'000;
    }
  }
  SECTION("if it is known") {
    seen.clock = ClockOffset::Estimate{1s, 2ms};
    const auto actions = job.agent.step(seen, t0);
    const auto window = decode_window(find_sent<Arrivals>(actions)->part).value();
    REQUIRE((window.number == 5 && window.clock_error == 2ms));
    REQUIRE(window.worst->rank == Rank{1});
    REQUIRE(window.worst->late == 30ms);
  }
  SECTION("else there is nothing to compare") { REQUIRE(job.agent.step(seen, t0).empty()); }
}

// SIGQUIT.

TEST_CASE("who asks by SIGQUIT sees all ranks before the job ends", "[unit][agent][hang]") {
  Running job;
  const auto asked = job.agent.step(SignalArrived{SIGQUIT}, t0);
  REQUIRE(find_sent<AskLook>(asked));
  REQUIRE_FALSE(find_sent<Leave>(asked));
  SECTION("with the page") {
    REQUIRE(*find<TakeLooks>(job.agent.step(FromCoordinator{Examine{0, true, false}}, t0)) ==
            TakeLooks{0, both, true, false});
    hang::Found page = found(1);
    page.asked = true;
    page.silence = 0s;
    const auto actions = job.agent.step(told(page), t0 + 1s);
    REQUIRE(find<TellHang>(actions)->report.asked);
    REQUIRE(find_sent<Leave>(actions)->exit_code == 131);
    REQUIRE(find<SignalWorkers>(actions)->number == SIGQUIT);
    REQUIRE(*find<ShowWorkers>(actions) == ShowWorkers{both, true});
    REQUIRE_FALSE(find_event<event::WorkerHung>(actions));
    SECTION("and once") { REQUIRE(find<KillWorkers>(job.agent.step(SignalArrived{SIGQUIT}, t0 + 3s))); }
  }
  SECTION("with that of a hang that was found meanwhile") {
    const auto actions = job.agent.step(told(found(1)), t0 + 1s);
    REQUIRE_FALSE(find<TellHang>(actions)->report.asked);
    REQUIRE(find_sent<Leave>(actions)->exit_code == 131);
    REQUIRE(*find<ShowWorkers>(actions) == ShowWorkers{both, true});
  }
  SECTION("or without it where it does not come") {
    REQUIRE(job.agent.deadline() == t0 + quit_patience);
    REQUIRE(job.agent.step(Wake{}, t0 + quit_patience - 1ns).empty());
    const auto actions = job.agent.step(Wake{}, t0 + quit_patience);
    REQUIRE(find_sent<Leave>(actions)->exit_code == 131);
    REQUIRE(*find<ShowWorkers>(actions) == ShowWorkers{both, false});
  }
  SECTION("which a copy by the other way does not hasten") {
    REQUIRE(job.agent.step(SignalArrived{SIGQUIT, false}, t0 + 300ms).empty());
  }
  SECTION("or at once, when he has no time") {
    const auto actions = job.agent.step(SignalArrived{SIGQUIT}, t0 + 2s);
    REQUIRE(find_sent<Leave>(actions)->exit_code == 131);
    REQUIRE(find<KillWorkers>(actions));
  }
  SECTION("also by another signal") {
    const auto actions = job.agent.step(SignalArrived{SIGTERM}, t0 + 1s);
    REQUIRE(find_sent<Leave>(actions)->exit_code == 131);
    REQUIRE_FALSE(find<KillWorkers>(actions));
  }
}

TEST_CASE("who asks by SIGQUIT ends the job though its round is over before the page comes", "[unit][agent][hang]") {
  Running job{two_workers(1)};
  static_cast<void>(job.agent.step(SignalArrived{SIGQUIT}, t0));
  SECTION("for another node") {
    const StopWorkers stop{Round{0}, StopCause::membership_change, "node b came"};
    const auto actions = job.agent.step(FromCoordinator{stop}, t0 + 1s);
    REQUIRE(find_sent<Leave>(actions));
    REQUIRE(find_sent<Leave>(actions)->exit_code == 131);
    static_cast<void>(job.agent.step(ended(0, -SIGQUIT), t0 + 1s));
    static_cast<void>(job.agent.step(ended(1, -SIGQUIT), t0 + 1s));
    REQUIRE_FALSE(find_sent<Join>(job.agent.step(DescendantsGone{}, t0 + 1s)));
  }
  SECTION("for a failure") {
    const auto actions = job.agent.step(ended(0, 1), t0 + 1s);
    REQUIRE(find_sent<WorkersFailed>(actions));
    REQUIRE(find_sent<Leave>(actions));
    REQUIRE(find_sent<Leave>(actions)->exit_code == 131);
  }
  SECTION("unless the job ends already: nobody is killed for it") {
    static_cast<void>(job.agent.step(FromCoordinator{End{verdict(1)}}, t0 + 1s));
    const auto later = job.agent.step(Wake{}, t0 + quit_patience);
    REQUIRE_FALSE(find_sent<Leave>(later));
    REQUIRE_FALSE(find<SignalWorkers>(later));
  }
}

TEST_CASE("where no worker runs there is nobody to be shown", "[unit][agent][hang]") {
  Agent agent{two_workers(), AgentIdentity{NodeId{"n"}, "host", {}, {}}};
  static_cast<void>(agent.step(Begin{}, t0));
  const auto actions = agent.step(SignalArrived{SIGQUIT}, t0);
  REQUIRE_FALSE(find_sent<AskLook>(actions));
  REQUIRE(find_sent<Leave>(actions));
}

// Among torchrun's agents.

namespace {

/// Two workers of ours, whose rendezvous is torchrun's; ranks 2 and 3 are nobody's of ours.
struct Foreign {
  explicit Foreign(LaunchConfig config = given(60s)) : agent{config, AgentIdentity{NodeId{"n"}, "host", {}, {}}} {
    static_cast<void>(agent.step(Begin{}, t0));
    Placed message = placed();
    message.placement.group_rank = GroupRank{1};
    message.placement.group_world_size = 2;
    message.placement.world_size = 4;
    message.watched = false;
    static_cast<void>(agent.step(FromCoordinator{message}, t0));
    static_cast<void>(agent.step(WorkerStarted{LocalRank{0}, 100}, t0));
    static_cast<void>(agent.step(WorkerStarted{LocalRank{1}, 101}, t0));
  }
  Agent agent;
};

}  // namespace

TEST_CASE("among torchrun's agents a node judges its own ranks, and touches none", "[unit][agent][hang]") {
  LaunchConfig config = given(60s);
  config.terms.on_hang = OnHang::restart;
  Foreign job{config};
  TimePoint now = t0 + 1s;
  static_cast<void>(job.agent.step(steps(3, now), now));
  const TakeLooks* taken = nullptr;
  std::vector<AgentAction> actions;
  for (int i = 0; i < 70 && !taken; ++i) {
    actions = job.agent.step(steps(3, t0 + 1s), now += 1s);
    taken = find<TakeLooks>(actions);
  }
  REQUIRE(taken);
  REQUIRE((*taken == TakeLooks{0, both, false, false} && now == t0 + 62s));
  REQUIRE(job.agent.deadline() == now + look_wait_max);
  std::vector<RankLook> seen{looks::in(looks::still(0), "0", "0-3", 5), looks::at(looks::still(1), "0", "0-3", 4)};
  actions = job.agent.step(LooksTaken{0, seen, {}}, now + 1s);
  REQUIRE_FALSE(find_sent<Examined>(actions));
  const auto* const tell = find<TellHang>(actions);
  REQUIRE(tell);
  REQUIRE(tell->report.verdict->kind == HangKind::stuck);
  REQUIRE(tell->report.verdict->culprits == looks::list({1}));
  REQUIRE(tell->report.verdict->unseen == looks::ranks("2-3"));
  REQUIRE((tell->report.action == HangAction::none && !tell->own.has_value()));
  REQUIRE_FALSE(find<AbortWorkers>(actions));
  REQUIRE(find_event<event::WorkerHung>(actions)->worker.rank == Rank{1});
  actions = job.agent.step(steps(4, now + 1s), now + 1s);
  REQUIRE(find_event<event::HangOver>(actions));
}

TEST_CASE("and shows them to who asks", "[unit][agent][hang]") {
  Foreign job;
  const auto asked = job.agent.step(SignalArrived{SIGQUIT}, t0 + 1s);
  REQUIRE_FALSE(find_sent<AskLook>(asked));
  REQUIRE(*find<TakeLooks>(asked) == TakeLooks{0, both, true, false});
  const auto actions = job.agent.step(LooksTaken{0, {looks::still(0), looks::still(1)}, {}}, t0 + 1s);
  REQUIRE(find<TellHang>(actions)->report.asked);
  REQUIRE(find_sent<Leave>(actions));
}

}  // namespace torchup
