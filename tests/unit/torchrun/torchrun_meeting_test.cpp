#include "rendezvous/core/torchrun/torchrun_meeting.hpp"

#include <catch2/catch.hpp>

#include "rendezvous/core/torchrun/torchrun_seating.hpp"
#include "tests/support/torchrun_world.hpp"

namespace torchup {

using namespace test;

TEST_CASE("an address that is no name is published to no worker", "[unit][torchrun]") {
  World world;
  const TorchrunNode first{"10.0.0.0", 5, 0};
  TorchrunState state;
  state.participants = {{first, 0}};
  state.last_heartbeats = {{first, utc0}};
  world.keys.put(state);
  world.keys.map["torch.rendezvous.job.0/MASTER_ADDR"] =
      GENERATE(as<std::string>{}, "a\nb", std::string(1 << 20, 'a'), "");
  world.keys.map["torch.rendezvous.job.0/MASTER_PORT"] = "4711";
  world.keys.map["torch.rendezvous.job.0/torchelastic/assigned_ranks/1"] = "[2, 4, 2, 4]";
  Node ours{"10.0.0.1", 8, 2, 2};
  ours.say(ours.join);
  std::string why;
  for (int i = 0; i < 5 && why.empty(); ++i) {
    const auto told = ours.peer.turn(world.keys, TimePoint{} + i * 100ms, utc0);
    if (!told) why = told.error().message();
    if (told) ours.heard.insert(ours.heard.end(), told->begin(), told->end());
  }
  REQUIRE_FALSE(ours.last<Placed>());
  REQUIRE(why.starts_with("the address of the workers' store cannot be used: "));
}

TEST_CASE("a round whose workers' store nobody names within a minute ends the job", "[unit][torchrun]") {
  World world;
  const TorchrunNode first{"10.0.0.0", 5, 0};
  TorchrunState state;
  state.participants = {{first, 0}};
  state.last_heartbeats = {{first, utc0}};
  world.keys.put(state);
  Node ours{"10.0.0.1", 8, 2, 2};
  world.nodes = {&ours};
  world.say(ours, ours.join);
  world.turn(ours);
  state = world.keys.state();
  REQUIRE(state.complete);
  for (auto& [node, heartbeat] : state.last_heartbeats) heartbeat = utc0 + 1h;
  world.keys.put(state);
  world.elapsed = torchrun_meeting_limit;
  world.turn(ours);
  REQUIRE_FALSE(ours.last<End>());
  world.elapsed += 1ms;
  world.turn(ours);
  REQUIRE(ours.last<End>());
  REQUIRE(ours.last<End>()->verdict.exit_code == 1);
  REQUIRE(ours.last<End>()->verdict.reason == "round 0 waited 60 s for the workers' store of 10.0.0.0");
  REQUIRE(world.keys.state().closed);  // others of ours have started their workers, perhaps, and see no other end
}

TEST_CASE("nodes wait five minutes for each other at the end", "[unit][torchrun]") {
  World world;
  Node a{"10.0.0.1", 7, 2, 2}, b{"10.0.0.2", 8, 2, 2};
  world.nodes = {&a, &b};
  for (Node* node : world.nodes) world.say(*node, node->join);
  world.run(1s);
  REQUIRE(a.last<Placed>());
  world.say(a, WorkersSucceeded{Round{0}});
  world.turn(a);
  world.elapsed += barrier_limit;
  world.turn(a);
  REQUIRE_FALSE(a.last<End>());
  world.elapsed += 1ms;
  world.turn(a);
  REQUIRE(a.last<End>());
  REQUIRE(a.last<End>()->verdict.exit_code == 0);
  REQUIRE(world.keys.state().closed);
}

TEST_CASE("a node whom too few have joined in time withdraws, with who was there", "[unit][torchrun]") {
  World world;
  Node ours{"10.0.0.1", 8, 2, 2};
  world.nodes = {&ours};
  world.say(ours, ours.join);
  world.run(60s);
  REQUIRE_FALSE(ours.last<End>());
  world.run(300ms);
  REQUIRE(ours.last<End>());
  REQUIRE(ours.last<End>()->verdict.exit_code == 66);
  REQUIRE(world.keys.state().participants.empty());
}

}  // namespace torchup
