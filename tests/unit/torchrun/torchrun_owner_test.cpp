// At a store of ours its owner decides who is gone and when a round must end, and agents of ours follow.
#include <catch2/catch.hpp>

#include "tests/support/torchrun_job.hpp"
#include "tests/support/torchrun_world.hpp"

namespace torchup {

using namespace test;

TEST_CASE("a store of ours is cared for by its owner alone", "[unit][torchrun]") {
  // What the owner would do, nobody does here: so it shows that no participant does it.
  World world;
  world.keys.cared = true;
  Node first{"10.0.0.1", 7, 1, 3, 1}, second{"10.0.0.2", 8, 1, 3, 1};
  const TorchrunNode theirs{"10.0.0.9", 5, 0};
  world.nodes = {&first, &second};
  TorchrunState state;
  state.participants = {{theirs, 0}};
  state.last_heartbeats = {{theirs, utc0 + 1h}};
  world.keys.put(state);
  world.keys.map["torch.rendezvous.job.0/torchelastic/role_info/2"] =
      R"({"role": "default", "rank": 2, "local_world_size": 1})";
  for (Node* node : world.nodes) world.say(*node, node->join);
  world.run(1s);
  REQUIRE(first.last<Placed>());
  REQUIRE(world.keys.state().participants.at(theirs) == 2);  // by address, as torchrun counts

  SECTION("who is silent, or gone, is no matter of a participant's, until the owner calls") {
    state = world.keys.state();
    const bool gone = GENERATE(false, true);
    if (gone) remove_node(state, {}, theirs);
    if (!gone) state.last_heartbeats[theirs] = utc0 - 1h;
    world.keys.put(state);
    world.run(30s);
    REQUIRE_FALSE(first.last<StopWorkers>());
    REQUIRE_FALSE(second.last<StopWorkers>());
    REQUIRE(world.keys.state().wait_list.empty());
    REQUIRE(world.keys.state().participants.contains(theirs) != gone);

    state = world.keys.state();
    state.wait_list.insert(TorchrunNode{"~", 0, -1});
    world.keys.put(state);
    world.run(1500ms);
    REQUIRE(first.last<StopWorkers>()->reason ==
            (gone ? "node 10.0.0.9 has left the round" : "another round was called for"));
    REQUIRE(second.last<StopWorkers>()->cause == StopCause::membership_change);
  }
  SECTION("nor does one whose worker fails take that for its cause") {
    state = world.keys.state();
    remove_node(state, {}, theirs);
    world.keys.put(state);
    world.say(second, WorkersFailed{Round{0}, {WorkerFailure{.rank = Rank{2}, .exit_code = 3}}});
    world.run(1s);
    REQUIRE(second.last<StopWorkers>()->cause == StopCause::worker_failure);
  }
  SECTION("who stops its workers calls nobody, nor does it complete the next round") {
    world.say(second, WorkersFailed{Round{0}, {WorkerFailure{.rank = Rank{2}, .exit_code = 3}}});
    world.run(1s);
    REQUIRE(second.last<StopWorkers>()->cause == StopCause::worker_failure);
    REQUIRE(second.peer.stopping());
    REQUIRE(world.keys.state().wait_list.empty());
    state = world.keys.state();
    remove_node(state, {}, theirs);
    world.keys.put(state);
    world.run(5s);
    REQUIRE_FALSE(first.last<StopWorkers>());
    REQUIRE(world.keys.state().wait_list.empty());
    state = world.keys.state();
    state.wait_list.insert(TorchrunNode{"~", 0, -1});
    world.keys.put(state);
    world.run(200ms);
    REQUIRE(first.last<StopWorkers>());
    state = world.keys.state();
    state.wait_list.clear();
    world.keys.put(state);
    for (Node* node : world.nodes) world.say(*node, node->join);
    world.run(1500ms);
    REQUIRE(world.keys.state().participants.size() == 2);
    REQUIRE_FALSE(world.keys.state().complete);  // before the last call is over, which is torchrun's own rule
    REQUIRE(world.keys.state().wait_list.empty());
  }
}

namespace {

/// A round of two of torchrun's agents and one of ours, whose keep-alives are told to the owner.
struct Watched : CaredJob {
  Watched() {
    enter(a, client_a);
    enter(b, client_b);
    state.participants[ours] = 0;
    state.last_heartbeats[ours] = utc0;
    write(std::nullopt);
    complete(client_b);
    care.ours({{ours, false}}, 4s);
  }
  void beat(const TorchrunNode& node, ClientId client) {
    state.last_heartbeats.at(node) = utc0 + 5h + std::chrono::duration_cast<std::chrono::microseconds>(now);
    write(client);
  }
  /// For so long, a living node sends a heartbeat each second, by a clock of its own.
  void pass(Duration time, bool a_lives, bool b_lives) {
    for (const Duration until = now + time; now < until; now += 500ms) {
      if (now % 1s == 0s && a_lives) beat(a, client_a);
      if (now % 1s == 0s && b_lives) beat(b, client_b);
      turn(now);
    }
  }
  [[nodiscard]] bool called() const {
    return std::ranges::any_of(state.wait_list, [](const TorchrunNode& node) { return is_caller(node); });
  }

  const TorchrunNode ours = our_node("10.0.0.9", 7, 0, false);
  Duration now{};
};

}  // namespace

TEST_CASE("the owner takes out who is silent, and calls the others, for agents of ours do not", "[unit][torchrun]") {
  Watched job;
  SECTION("after three of the intervals that have shown, and not before our own lease is over") {
    job.pass(5s, true, true);
    job.pass(3s, true, false);
    REQUIRE(job.state.participants.contains(b));
    job.pass(1s, true, false);
    REQUIRE_FALSE(job.state.participants.contains(b));
    REQUIRE(job.called());
    REQUIRE(job.care.recall(client_b, job.keys));  // where it still runs
    REQUIRE(job.care.notes().front() == "node b is silent: taken out of the job");
  }
  SECTION("after torchrun's own lease, where none has shown") {
    job.pass(14s, false, false);
    REQUIRE(job.state.participants.size() == 3);
    job.pass(2s, false, false);
    REQUIRE(job.state.participants == std::map<TorchrunNode, std::int64_t>{{job.ours, 0}});
    REQUIRE(job.called());
  }
  SECTION("whatever is written on behalf of one that waits") {
    job.state.last_heartbeats[b] = utc0 + 1s;
    job.write(client_b);
    job.turn(2500ms, [](ClientId client) { return client == client_b; });
    REQUIRE(job.state.last_heartbeats[b] == utc0 + 2500ms);
    job.state.redundancy_list.insert(c);
    job.write(client_b);
    job.now = 3s;
    job.pass(9s, false, false);
    REQUIRE(job.state.participants.size() == 3);
  }
  SECTION("but agents of ours are heard elsewhere") {
    job.pass(30s, true, true);
    REQUIRE(job.state.participants.size() == 3);
    REQUIRE_FALSE(job.called());
  }
  SECTION("nor where the owner itself was asleep") {
    job.pass(5s, true, true);
    job.now += 60s;
    job.pass(3s, false, false);
    REQUIRE(job.state.participants.size() == 3);
  }
  SECTION("nor in the exit barrier") {
    job.keys.map["torch.rendezvous.job.0/torchelastic/agent/terminal_state/num_members"] = "1";
    job.pass(60s, false, false);
    REQUIRE(job.state.participants.size() == 3);
  }
  SECTION("nor where agents of ours have no part: torchrun's judge for themselves") {
    job.care.ours({}, 4s);
    job.pass(60s, true, false);
    REQUIRE(job.state.participants.contains(b));
  }
}

namespace {

/// A store of ours, with its owner.
struct OwnedKeys final : Keys {
  OwnedKeys() { cared = true; }
  Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) override {
    auto held = Keys::compare_set(key, expected, desired);
    if (*held == desired) care.wrote({}, *this);
    return held;
  }
  TorchrunCare care{{.run_id = RunId{"job"}}};
};

}  // namespace

TEST_CASE("an agent of ours stops when the owner calls, and not before", "[unit][torchrun]") {
  OwnedKeys keys;
  TorchrunState state;
  state.participants = {{a, 0}};
  state.last_heartbeats = {{a, utc0}};
  keys.put(state);
  keys.care.wrote(client_a, keys);
  keys.map["torch.rendezvous.job.0/torchelastic/role_info/1"] =
      R"({"role": "default", "rank": 1, "local_world_size": 1})";
  Node ours{"10.0.0.1", 7, 2, 2};
  Duration now{};
  const auto run = [&](Duration time, bool owner_awake) {
    for (const Duration until = now + time; now < until; now += 100ms) {
      const UtcTime utc = utc0 + std::chrono::duration_cast<std::chrono::microseconds>(now);
      if (ours.peer.node()) keys.care.ours({{*ours.peer.node(), ours.peer.stopping()}}, ours.join.terms.lease);
      if (owner_awake)
        keys.care.turn(
            keys, [](ClientId) { return false; }, TimePoint{} + now, utc);
      const auto told = ours.peer.turn(keys, TimePoint{} + now, utc);
      REQUIRE(told.has_value());
      for (const CoordinatorMessage& message : *told) {
        ours.heard.push_back(message);
        if (const auto* host = std::get_if<HostStore>(&message)) ours.say(StoreReady{host->round, Port{1000}});
      }
    }
  };
  ours.say(ours.join);
  run(2s, true);
  REQUIRE(ours.last<Placed>());
  run(60s, false);  // the other one is silent all the time
  REQUIRE_FALSE(ours.last<StopWorkers>());
  REQUIRE(keys.state().participants.contains(a));
  run(14s, true);
  REQUIRE_FALSE(ours.last<StopWorkers>());
  run(3s, true);
  REQUIRE_FALSE(keys.state().participants.contains(a));
  REQUIRE(ours.last<StopWorkers>());
  REQUIRE(ours.last<StopWorkers>()->reason == "node a has left the round");
}

}  // namespace torchup
