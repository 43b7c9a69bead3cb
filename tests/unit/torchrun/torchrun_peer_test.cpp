#include "rendezvous/core/torchrun/torchrun_peer.hpp"

#include <catch2/catch.hpp>

#include "tests/support/torchrun_world.hpp"

namespace torchup {

using namespace test;

TEST_CASE("two peers form a round, and end it together", "[unit][torchrun]") {
  World world;
  Node b{"10.0.0.2", 7, 2, 2}, a{"10.0.0.1", 8, 2, 2};
  world.nodes = {&b, &a};
  world.say(b, b.join);
  world.run(1s);
  REQUIRE_FALSE(b.last<Placed>());
  REQUIRE(b.last<Waiting>()->roster == "1 of 2 nodes among torchrun's agents: 10.0.0.2");
  world.say(a, a.join);
  world.run(1s);
  REQUIRE(a.last<Placed>());
  REQUIRE(b.last<Placed>());
  REQUIRE(a.last<Placed>()->placement == Placement{.round = Round{0},
                                                   .group_rank = GroupRank{0},
                                                   .group_world_size = 2,
                                                   .first_rank = Rank{0},
                                                   .world_size = 4,
                                                   .first_role_rank = Rank{0},
                                                   .role_world_size = 4,
                                                   .master_addr = "10.0.0.1",
                                                   .master_port = Port{1000}});
  REQUIRE(b.last<Placed>()->placement.first_rank == Rank{2});

  SECTION("both succeed") {
    world.say(a, WorkersSucceeded{Round{0}});
    world.run(5s);
    REQUIRE_FALSE(a.last<End>());
    world.say(b, WorkersSucceeded{Round{0}});
    world.run(1s);
    REQUIRE(a.last<End>()->verdict.exit_code == 0);
    REQUIRE(b.last<End>()->verdict.exit_code == 0);
    REQUIRE(world.keys.state().closed);
  }
  SECTION("one fails for good, and closes the rendezvous for the other") {
    world.say(b, WorkersFailed{Round{0}, {WorkerFailure{.rank = Rank{3}, .exit_code = 3}}});
    world.run(300ms);
    REQUIRE_FALSE(b.last<End>());  // another node's change may explain it yet
    world.run(1s);
    REQUIRE(b.last<End>()->verdict.exit_code == 1);
    REQUIRE(b.last<End>()->verdict.failures.size() == 1);
    REQUIRE(a.last<End>()->verdict.exit_code == 1);
  }
  SECTION("one leaves: its place is free at once") {
    world.say(b, Leave{.ends_job = false, .exit_code = 143, .reason = "SIGTERM"});
    world.run(100ms);
    REQUIRE(b.last<End>()->verdict.exit_code == 143);
    REQUIRE(world.keys.state().participants.size() == 1);
  }
}

TEST_CASE("a restart costs the node whose worker failed, and nobody else", "[unit][torchrun]") {
  World world;
  Node a{"10.0.0.1", 7, 2, 2, 1}, b{"10.0.0.2", 8, 2, 2, 1};
  world.nodes = {&a, &b};
  for (Node* node : world.nodes) world.say(*node, node->join);
  world.run(1s);
  REQUIRE(a.last<Placed>());
  world.say(b, WorkersFailed{Round{0}, {WorkerFailure{.rank = Rank{2}, .exit_code = 3}}});
  world.run(1200ms);
  REQUIRE(b.last<StopWorkers>()->cause == StopCause::worker_failure);
  world.say(b, b.join);
  world.run(200ms);
  // The collateral failure on a is explained by b's way out.
  world.say(a, WorkersFailed{Round{0}, {WorkerFailure{.rank = Rank{0}, .exit_code = 1}}});
  world.run(200ms);
  REQUIRE(a.last<StopWorkers>()->cause == StopCause::membership_change);
  world.say(a, a.join);
  world.run(1s);
  REQUIRE(a.last<Placed>()->placement.round == Round{1});
  REQUIRE(a.last<Placed>()->placement.restart_count == 0);
  REQUIRE(b.last<Placed>()->placement.restart_count == 1);
  // Old-timers never read a new address: the store stays, is emptied, and published again.
  REQUIRE(world.keys.map.at("torch.rendezvous.job.1/MASTER_PORT") == "1000");
  REQUIRE(world.keys.emptied == std::vector<std::string>{"10.0.0.1:1000", "10.0.0.1:1000"});
  REQUIRE(std::ranges::count_if(a.heard, [](const auto& said) { return std::holds_alternative<HostStore>(said); }) ==
          1);
}

TEST_CASE("a restart is taken back when its cause turns out to be a node that ended", "[unit][torchrun]") {
  World world;
  Node a{"10.0.0.1", 7, 1, 2, 1}, b{"10.0.0.2", 8, 1, 2, 1};
  world.nodes = {&a, &b};
  for (Node* node : world.nodes) world.say(*node, node->join);
  world.run(1s);
  REQUIRE(a.last<Placed>());
  world.nodes = {&a};  // b is killed: it says nothing more
  world.say(a, WorkersFailed{Round{0}, {WorkerFailure{.rank = Rank{0}, .exit_code = 1}}});
  world.run(1200ms);
  REQUIRE(a.last<StopWorkers>()->cause == StopCause::worker_failure);
  world.say(a, a.join);
  world.run(20s);
  REQUIRE(a.last<Placed>()->placement.round == Round{1});
  REQUIRE(a.last<Placed>()->placement.group_world_size == 1);
  REQUIRE(a.last<Placed>()->placement.restart_count == 0);
  REQUIRE(a.last<Placed>()->placement.membership_changes == 1);
}

TEST_CASE("ranks that no node of the round can have end the job, and nobody is placed", "[unit][torchrun]") {
  World world;
  const TorchrunNode first{"10.0.0.0", 5, 0};
  TorchrunState state;
  state.participants = {{first, 0}};
  state.last_heartbeats = {{first, utc0}};
  world.keys.put(state);
  world.keys.map["torch.rendezvous.job.0/MASTER_ADDR"] = "10.0.0.0";
  world.keys.map["torch.rendezvous.job.0/MASTER_PORT"] = "4711";
  world.keys.map["torch.rendezvous.job.0/torchelastic/assigned_ranks/1"] = GENERATE("[0, 1, 0, 1]", "[3, 4, 0, 4]");
  Node ours{"10.0.0.1", 8, 2, 2};
  world.nodes = {&ours};
  world.say(ours, ours.join);
  world.run(3s);
  REQUIRE_FALSE(ours.last<Placed>());
  REQUIRE(ours.last<End>()->verdict.exit_code == 1);
  REQUIRE(ours.last<End>()->verdict.reason.find("none of this round") != std::string::npos);
}

TEST_CASE("a round whose group ranks are not 0, 1, 2 is left", "[unit][torchrun]") {
  World world;
  Node ours{"10.0.0.1", 8, 2, 2};
  world.nodes = {&ours};
  world.say(ours, ours.join);
  world.run(500ms);
  TorchrunState state = world.keys.state();
  REQUIRE(state.participants.size() == 1);
  const TorchrunNode me = state.participants.begin()->first, other{"10.0.0.2", 5, 0};
  const auto [my_rank, its_rank] = GENERATE(std::pair{0, 0}, std::pair{0, 2}, std::pair{16383, 1});
  state.participants = {{me, my_rank}, {other, its_rank}};
  state.last_heartbeats[other] = state.last_heartbeats[me];
  state.complete = true;
  world.keys.put(state);
  world.run(1s);
  REQUIRE_FALSE(ours.last<HostStore>());
  REQUIRE_FALSE(world.keys.state().participants.contains(me));
  REQUIRE(world.keys.state().wait_list.contains(me));
}

TEST_CASE("a newcomer finds the store of a silent rank 0, and publishes it", "[unit][torchrun]") {
  // A torchrun agent of the first round, which publishes no more, and one of ours that joins a later one.
  World world;
  const TorchrunNode old{"10.0.0.9", 5, 0};
  world.keys.map["torch.rendezvous.job.0/MASTER_ADDR"] = "10.0.0.9";
  world.keys.map["torch.rendezvous.job.0/MASTER_PORT"] = "4711";
  const bool was_away = GENERATE(false, true);  // for a round in which another was first
  if (was_away) {
    world.keys.map["torch.rendezvous.job.1/MASTER_ADDR"] = "10.0.0.5";
    world.keys.map["torch.rendezvous.job.1/MASTER_PORT"] = "4712";
  }
  TorchrunState state;
  state.round = was_away ? 2 : 1;
  const auto key = [round = state.round](int later, const std::string& name) {
    return torchrun_round_key(RunId{"job"}, round + later, name);
  };
  state.participants = {{old, 0}};
  state.last_heartbeats = {{old, utc0}};
  world.keys.put(state);
  Node ours{"10.0.0.1", 8, 2, 2};
  ours.join.terms.lease = 30s;
  world.nodes = {&ours};
  world.say(ours, ours.join);
  world.run(2s);
  state = world.keys.state();
  REQUIRE(state.complete);
  REQUIRE(state.participants.at(old) == 0);  // ours stands behind those who run
  REQUIRE_FALSE(world.keys.map.contains(key(0, "MASTER_ADDR")));
  world.run(2s);
  REQUIRE(world.keys.map.at(key(0, "MASTER_ADDR")) == "10.0.0.9");
  REQUIRE(world.keys.map.at(key(0, "MASTER_PORT")) == "4711");
  REQUIRE(world.keys.emptied == std::vector<std::string>{"10.0.0.9:4711"});
  world.keys.map[key(0, "torchelastic/assigned_ranks/1")] = "[1, 3, 1, 3]";
  world.run(500ms);
  REQUIRE(ours.last<Placed>()->placement.master_port == Port{4711});
  REQUIRE(ours.last<Placed>()->placement.first_rank == Rank{1});

  SECTION("a participant that falls silent makes us ask for a new round") {
    world.run(60s);  // where no other torchrun agent is, nobody is called
    REQUIRE(ours.last<StopWorkers>()->cause == StopCause::membership_change);
    // It may live, and run on with a round that has gone: who waits is all that it looks at.
    world.say(ours, ours.join);
    world.run(2s);
    REQUIRE(world.keys.state().wait_list.empty());  // or it is just about to come
    world.run(2s);
    state = world.keys.state();
    REQUIRE(state.round == (was_away ? 3 : 2));
    REQUIRE(state.wait_list.size() == 1);
    state.participants[old] = 0;
    state.last_heartbeats[old] = utc0 + std::chrono::duration_cast<std::chrono::microseconds>(world.elapsed);
    state.complete = true;
    state.participants.rbegin()->second = 1;
    world.keys.put(state);
    world.keys.map[key(1, "MASTER_ADDR")] = "10.0.0.9";
    world.keys.map[key(1, "MASTER_PORT")] = "4711";
    world.run(1s);
    REQUIRE(world.keys.state().complete);
    REQUIRE(world.keys.state().wait_list.empty());
    REQUIRE_FALSE(world.keys.map.contains(key(1, "torchelastic/role_info/1")));  // it remembers for a second
    world.run(500ms);
    REQUIRE(world.keys.map.contains(key(1, "torchelastic/role_info/1")));
  }
  SECTION("an agent at the exit barrier is not silent, it waits") {
    world.keys.map[key(0, "torchelastic/agent/terminal_state/num_members")] = "1";
    world.run(60s);
    REQUIRE_FALSE(ours.last<StopWorkers>());
  }
  SECTION("a node that joins: the others had time to see it before we stop") {
    state = world.keys.state();
    const TorchrunNode third{"10.0.0.7", 3, 0};
    state.wait_list = {third};
    state.last_heartbeats[third] = utc0 + 5s;
    world.keys.put(state);
    world.run(1s);
    REQUIRE_FALSE(ours.last<StopWorkers>());
    world.run(500ms);
    REQUIRE(ours.last<StopWorkers>()->reason == "joining: 10.0.0.7");
  }
}

TEST_CASE("a spare is released when the job ends well", "[unit][torchrun]") {
  World world;
  const TorchrunNode theirs{"10.0.0.9", 5, 0};
  TorchrunState state;
  state.participants = {{theirs, 0}};
  state.complete = true;
  state.last_heartbeats = {{theirs, utc0 + 1h}};
  world.keys.put(state);
  Node ours{"10.0.0.1", 8, 1, 1};
  world.nodes = {&ours};
  const std::string terminal = "torch.rendezvous.job.0/torchelastic/agent/terminal_state/";
  const auto close = [&] {
    state = world.keys.state();
    state.closed = true;
    world.keys.put(state);
  };
  SECTION("and has stood by until then") {
    world.say(ours, ours.join);
    world.run(1s);
    REQUIRE(ours.last<Waiting>()->roster.ends_with("this node is a spare"));
    REQUIRE(ours.peer.pace() <= 20ms);  // the store may go as soon as the others have met
    REQUIRE_FALSE(ours.peer.finished_without_store());
    SECTION("the store may be gone before it looks again") {
      world.keys.map[terminal + "num_members"] = "1";
      world.run(100ms);
      REQUIRE(ours.peer.finished_without_store());
    }
    SECTION("or not") {
      world.keys.map[terminal + "num_members"] = "1";
      world.keys.map[terminal + "last_member"] = "<val_ignored>";
      close();
      world.run(100ms);
      REQUIRE(ours.last<End>()->verdict.exit_code == 0);
    }
    SECTION("but a failure is one for the spare too") {
      world.keys.map[terminal + "num_members"] = "1";
      close();
      world.run(100ms);
      REQUIRE(ours.last<End>()->verdict.exit_code == 1);
    }
  }
  SECTION("one that comes when all is over has stood by for nobody") {
    world.keys.map[terminal + "last_member"] = "<val_ignored>";
    close();
    world.say(ours, ours.join);
    world.run(100ms);
    REQUIRE(ours.last<End>()->verdict.exit_code == 1);
  }
}

TEST_CASE("the last call is for a job's beginning", "[unit][torchrun]") {
  World world;
  Node a{"10.0.0.1", 7, 1, 3, 1}, b{"10.0.0.2", 8, 1, 3, 1};
  world.nodes = {&a, &b};
  for (Node* node : world.nodes) {
    node->join.terms.last_call = 30s;
    world.say(*node, node->join);
  }
  world.run(29s);
  REQUIRE_FALSE(a.last<Placed>());  // others may be on their way
  world.run(3s);
  REQUIRE(a.last<Placed>());
  world.say(b, WorkersFailed{Round{0}, {WorkerFailure{.rank = Rank{2}, .exit_code = 3}}});
  world.run(1s);
  world.say(b, b.join);
  world.run(500ms);
  REQUIRE(world.keys.state().round == 0);
  world.say(a, a.join);
  world.run(200ms);
  REQUIRE_FALSE(world.keys.state().complete);  // one that is between two steps would be left behind
  world.run(800ms);
  REQUIRE(a.last<Placed>()->placement.round == Round{1});
  REQUIRE(b.last<Placed>()->placement.group_world_size == 2);
}

TEST_CASE("the others are called together before we stop, when a participant is lost", "[unit][torchrun]") {
  World world;
  const TorchrunNode theirs{"10.0.0.7", 3, 0}, lost{"10.0.0.9", 5, 0};
  Node ours{"10.0.0.1", 8, 2, 3};
  ours.join.terms.lease = 4s;
  TorchrunState state;
  state.participants = {{theirs, 0}, {lost, 0}};
  state.last_heartbeats = {{theirs, utc0}, {lost, utc0}};
  world.keys.put(state);
  world.keys.map["torch.rendezvous.job.0/torchelastic/role_info/1"] =
      R"({"role": "default", "rank": 1, "local_world_size": 1})";
  world.keys.map["torch.rendezvous.job.0/torchelastic/role_info/2"] =
      R"({"role": "default", "rank": 2, "local_world_size": 1})";
  world.nodes = {&ours};
  world.say(ours, ours.join);
  /// Those nodes go on, with a heartbeat each `interval`.
  const auto pass = [&](Duration time, Duration interval, std::vector<TorchrunNode> living) {
    for (const Duration until = world.elapsed + time; world.elapsed < until;) {
      TorchrunState now = world.keys.state();
      for (const TorchrunNode& node : living) {
        now.last_heartbeats.at(node) = utc0 + std::chrono::duration_cast<std::chrono::microseconds>(world.elapsed);
      }
      world.keys.put(now);
      world.run(interval);
    }
  };
  const TorchrunNode caller = caller_for(our_node("10.0.0.1", 8, 0, false));
  const auto called = [&] { return world.keys.state().wait_list.contains(caller); };

  SECTION("by torchrun's own lease where nothing else has shown") {
    pass(1s, 1s, {theirs, lost});
    REQUIRE(ours.last<Placed>());
    world.run(14s);
    REQUIRE_FALSE(called());
    REQUIRE_FALSE(ours.last<StopWorkers>());
  }
  SECTION("by three of the intervals that it has kept, and not before our own lease is over") {
    pass(10s, 1s, {theirs, lost});
    pass(3s, 1s, {theirs});
    REQUIRE_FALSE(called());
    pass(1s, 1s, {theirs});
    REQUIRE(called());
    REQUIRE_FALSE(ours.last<StopWorkers>());
    pass(2s, 1s, {theirs});
    REQUIRE(ours.last<StopWorkers>()->reason == "node 10.0.0.9 has left the round");

    world.say(ours, ours.join);
    pass(1s, 1s, {theirs});
    REQUIRE(called());
    state = world.keys.state();
    remove_node(state, {}, theirs);  // the last to leave
    world.keys.put(state);
    world.run(100ms);
    REQUIRE(world.keys.state().round == 1);
    REQUIRE_FALSE(called());  // it would call for a second round
  }
  SECTION("but not in the exit barrier") {
    pass(10s, 1s, {theirs, lost});
    pass(4s, 1s, {theirs});
    REQUIRE(called());
    world.keys.map["torch.rendezvous.job.0/torchelastic/agent/terminal_state/num_members"] = "1";
    pass(10s, 1s, {theirs});
    REQUIRE_FALSE(called());
    REQUIRE_FALSE(ours.last<StopWorkers>());
  }
}

TEST_CASE("of what a peer's workers tell at once the cause is named", "[unit][torchrun]") {
  World world;
  Node a{"10.0.0.1", 7, 1, 1, GENERATE(0, 1)};
  world.nodes = {&a};
  world.say(a, a.join);
  world.run(3s);
  REQUIRE(a.last<Placed>());
  world.say(a, WorkersFailed{Round{0},
                             {WorkerFailure{.rank = Rank{0}, .exit_code = 1, .consequence = true},
                              WorkerFailure{.rank = Rank{1}, .exit_code = 3}}});
  world.run(2s);
  const auto* stop = a.last<StopWorkers>();
  REQUIRE((stop ? stop->reason : a.last<End>()->verdict.reason).starts_with("rank 1 failed"));
}

}  // namespace torchup
