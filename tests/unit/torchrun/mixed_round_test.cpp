// One machine decides for all agents of ours in a mixed job, and one writer says what they are in torchrun's state.
#include "rendezvous/core/torchrun/mixed_round.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/mixed_world.hpp"

namespace torchup {

using namespace test;

namespace {

/// A round of two of ours and one of torchrun's, which is group rank 2.
struct Running : MixedWorld {
  explicit Running(JobTerms job_terms = mixed_terms(2, 3)) : MixedWorld{job_terms} {
    keys.put_as(their.client, {});
    theirs = {&their};
    run(500ms);
    first = enter("10.0.0.1");
    second = enter("10.0.0.2");
    run(3s);
    REQUIRE(last<Placed>(first));
    REQUIRE(last<Placed>(second));
    REQUIRE(their.phase == TheirAgent::Phase::running);
    theirs.clear();  // it looks when a test says so
  }
  void fail(MixedParts::Id id) { say(id, WorkersFailed{Round{0}, {WorkerFailure{.rank = Rank{2}, .exit_code = 3}}}); }
  void call() {
    TorchrunState state = keys.state();
    state.wait_list.insert(TorchrunNode{"~", 0, -1});
    keys.put_as(ClientId{99}, state);
  }

  TheirAgent their{"10.0.0.9", 5, terms};
  MixedParts::Id first = 0, second = 0;
};

std::size_t count_in_lists(const TorchrunState& state) {
  const auto real = [](const auto& list) {
    return std::ranges::count_if(list, [](const auto& n) { return !is_caller(n); });
  };
  return state.participants.size() + static_cast<std::size_t>(real(state.wait_list) + real(state.redundancy_list));
}

}  // namespace

TEST_CASE("two of ours and one of torchrun's form a round, and end together", "[unit][mixed]") {
  Running job;
  const Placement& first = job.last<Placed>(job.first)->placement;
  const Placement& second = job.last<Placed>(job.second)->placement;
  REQUIRE(first.group_rank == GroupRank{0});
  REQUIRE(second.group_rank == GroupRank{1});
  REQUIRE(second.first_rank == Rank{2});
  REQUIRE(first.world_size == 5);
  REQUIRE(second.master_addr == "10.0.0.1");
  job.say(job.first, WorkersSucceeded{Round{0}});
  job.say(job.second, WorkersSucceeded{Round{0}});
  job.run(1s);
  REQUIRE_FALSE(job.last<End>(job.first));
  job.their.succeed();
  job.theirs = {&job.their};
  job.run(300ms);
  for (const auto id : {job.first, job.second}) REQUIRE(job.last<End>(id)->verdict.exit_code == 0);
  REQUIRE(job.their.phase == TheirAgent::Phase::over);
  REQUIRE(job.keys.state().closed);
}

TEST_CASE("all of ours stop at one moment, when torchrun's agents know why", "[unit][mixed]") {
  Running job;
  job.call();
  job.run(500ms);
  REQUIRE_FALSE(job.last<StopWorkers>(job.first));
  SECTION("since the last of these has looked") {
    job.theirs = {&job.their};
    job.step();
  }
  SECTION("since it had the time to look") {
    job.run(600ms);
    REQUIRE_FALSE(job.last<StopWorkers>(job.first));
    job.run(200ms);
  }
  for (const auto id : {job.first, job.second}) {
    REQUIRE(job.last<StopWorkers>(id));
    REQUIRE(job.last<StopWorkers>(id)->reason == "another round was called for");
  }
}

TEST_CASE("of several failures among ours one is counted", "[unit][mixed]") {
  Running job;
  job.fail(job.second);
  job.run(100ms);
  job.fail(job.first);
  job.run(500ms);
  REQUIRE(job.last<StopWorkers>(job.second)->cause == StopCause::worker_failure);
  REQUIRE(job.last<StopWorkers>(job.first)->cause == StopCause::membership_change);
  job.theirs = {&job.their};
  job.run(200ms);
  for (const auto id : {job.first, job.second}) job.say(id, job.join());
  job.run(3s);
  REQUIRE(job.last<Placed>(job.second)->placement.restart_count == 1);
  REQUIRE(job.last<Placed>(job.first)->placement.restart_count == 0);
  REQUIRE(job.last<Placed>(job.first)->placement.group_rank == GroupRank{0});

  SECTION("and one more, with no restart left, ends the job for all") {
    const std::int64_t round = job.keys.state().round;
    job.say(job.second, WorkersFailed{Round{round}, {WorkerFailure{.rank = Rank{3}, .exit_code = 4}}});
    job.run(600ms);
    for (const auto id : {job.first, job.second}) {
      REQUIRE(job.last<End>(id)->verdict.exit_code == 1);
      REQUIRE(job.last<End>(id)->verdict.failures.front().exit_code == 4);
    }
    REQUIRE(job.keys.state().closed);
  }
}

TEST_CASE("one of ours that leaves calls the others to another round", "[unit][mixed]") {
  Running job;
  job.say(job.first, Leave{.ends_job = false, .exit_code = 143});
  job.turn();
  REQUIRE(job.last<End>(job.first)->verdict.exit_code == 143);
  REQUIRE(job.keys.state().participants.size() == 2);
  job.theirs = {&job.their};
  job.run(500ms);
  REQUIRE(job.last<StopWorkers>(job.second)->reason == "node 10.0.0.1 has left the round");
  job.say(job.second, job.join());
  job.run(3s);
  REQUIRE(job.last<Placed>(job.second)->placement.group_world_size == 2);
  REQUIRE(job.last<Placed>(job.second)->placement.group_rank == GroupRank{0});
}

TEST_CASE("one of ours that joins a running mixed job comes last", "[unit][mixed]") {
  Running job{mixed_terms(2, 4)};
  const auto late = job.enter("10.0.0.0");
  job.theirs = {&job.their};
  job.run(500ms);
  for (const auto id : {job.first, job.second}) {
    REQUIRE(job.last<StopWorkers>(id));
    job.say(id, job.join());
  }
  job.run(3s);
  REQUIRE(job.last<Placed>(job.first)->placement.group_rank == GroupRank{0});
  REQUIRE(job.last<Placed>(late)->placement.group_rank == GroupRank{3});
}

TEST_CASE("one of ours that is too often lost is used where too few others are", "[unit][mixed]") {
  Running job{mixed_terms(2, 4)};
  const auto late = job.next_id;
  job.round.enter(late, "10.0.0.3", 7);
  job.round.set_aside(late, true);
  job.say(late, job.join());
  job.run(5s);
  REQUIRE(job.keys.state().wait_list.empty());
  SECTION("or when it has been calm") {
    job.round.set_aside(late, false);
    job.turn();
    REQUIRE(job.keys.state().wait_list.size() == 1);
  }
}

TEST_CASE("ours take one step in each write to torchrun's state", "[unit][mixed]") {
  constexpr int ours = 256;
  MixedWorld job{mixed_terms(2, ours + 1)};
  TheirAgent their{"10.0.0.9", 5, job.terms};
  job.keys.put_as(their.client, {});
  job.theirs = {&their};
  job.run(300ms);
  job.keys.written.clear();
  TorchrunState before = job.keys.state();
  for (int i = 0; i < ours; ++i) job.enter("10.0.1." + std::to_string(i));
  job.turn();
  REQUIRE(job.keys.state().complete);
  REQUIRE(job.keys.written.size() == ours);
  for (const TorchrunState& state : job.keys.written) {
    REQUIRE(count_in_lists(state) == count_in_lists(before) + 1);
    before = state;
  }
  job.keys.written.clear();
  job.run(900ms);
  REQUIRE(job.keys.written.size() <= 1);  // all heartbeats at once
}

TEST_CASE("of what a node of a mixed job tells at once the cause is named", "[unit][mixed]") {
  Running job{mixed_terms(2, 3, GENERATE(0, 1))};
  job.say(job.second, WorkersFailed{Round{0},
                                    {WorkerFailure{.rank = Rank{2}, .exit_code = 1, .consequence = true},
                                     WorkerFailure{.rank = Rank{3}, .exit_code = 3}}});
  job.run(600ms);
  const auto* stop = job.last<StopWorkers>(job.second);
  REQUIRE((stop ? stop->reason : job.last<End>(job.second)->verdict.reason).starts_with("rank 3 failed"));
}

TEST_CASE("what ours have told is counted until they are over", "[unit][mixed]") {
  Running job;
  const std::size_t before = job.round.held_bytes();
  REQUIRE(before >= 2 * held_bytes(job.join()));
  WorkersFailed failed{Round{0}, {WorkerFailure{.rank = Rank{2}, .message = std::string(7000, 'x')}}};
  job.say(job.second, failed);
  REQUIRE(job.round.held_bytes() > before + 7000);
  Leave leave{.ends_job = false};
  leave.failures = failed.failures;
  job.say(job.second, leave);
  REQUIRE(job.round.held_bytes() > before + 14'000);
  job.turn();
  REQUIRE(job.last<End>(job.second));
  REQUIRE(job.round.over(job.second));
  REQUIRE(job.round.held_bytes() == held_bytes(job.join()));
}

TEST_CASE("where the coordinator of a mixed job was asleep its nodes have time to be heard", "[unit][mixed]") {
  static constexpr Duration patience = 3s;
  const auto sleep = [](MixedWorld& job, Duration duration) {
    job.elapsed += duration;
    job.round.slept(job.now(), patience);
    job.turn();
  };
  MixedWorld job{mixed_terms(2, 2)};
  TheirAgent their{"10.0.0.9", 5, job.terms};
  job.keys.put_as(their.client, {});
  SECTION("to meet") {
    job.theirs = {&their};
    job.run(500ms);
    job.theirs.clear();
    const auto ours = job.enter("10.0.0.1");
    job.run(1s);
    REQUIRE(job.last<HostStore>(ours));
    sleep(job, 1h);
    REQUIRE_FALSE(job.last<End>(ours));
  }
  SECTION("to show that they are the cause") {
    Running running;
    running.fail(running.first);
    sleep(running, 1h);
    REQUIRE_FALSE(running.last<StopWorkers>(running.first));
    running.elapsed += 400ms;
    running.turn();
    REQUIRE(running.last<StopWorkers>(running.first));
  }
}

}  // namespace torchup
