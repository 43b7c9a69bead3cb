#include "rendezvous/core/torchrun/torchrun_care.hpp"

#include <catch2/catch.hpp>

#include "rendezvous/core/torchrun/torchrun_board.hpp"
#include "tests/support/torchrun_job.hpp"

namespace torchup {

using namespace test;

TEST_CASE("a key of a round is told from others", "[unit][torchrun]") {
  const auto key = read_round_key("/torch.rendezvous.a.b/c.12/torchelastic/role_info/0");
  REQUIRE(key);
  REQUIRE(key->run_id == RunId{"a.b/c"});
  REQUIRE(key->round == 12);
  REQUIRE(key->name == "torchelastic/role_info/0");
  REQUIRE_FALSE(read_round_key("/torch.rendezvous.a.b"));
  REQUIRE_FALSE(read_round_key("/torch.rendezvous.a.x1/MASTER_ADDR"));
  REQUIRE_FALSE(read_round_key("/torch.rendezvous..1/MASTER_ADDR"));
  REQUIRE_FALSE(read_round_key("/job.1/MASTER_ADDR"));
  REQUIRE(read_round_key("/torch.rendezvous.a.1.5/x")->round == 5);
  // As fast as it is read, whatever stands in it.
  REQUIRE_FALSE(read_round_key("/torch.rendezvous.a" + std::string(2'000'000, '/')));
  REQUIRE_FALSE(read_round_key("/torch.rendezvous.a." + std::string(2'000'000, '/')));
}

TEST_CASE("a torchrun agent whose connection ends leaves its place", "[unit][torchrun]") {
  CaredJob job;
  job.enter(a, client_a);
  job.enter(b, client_b);
  job.complete(client_b);
  job.state.redundancy_list.insert(c);
  job.state.last_heartbeats[c] = utc0;
  job.write(client_c);
  job.care.gone(client_b, job.keys);
  REQUIRE(job.keys.state().participants == std::map<TorchrunNode, std::int64_t>{{a, 0}});
  REQUIRE_FALSE(job.keys.state().last_heartbeats.contains(b));
  job.care.gone(client_c, job.keys);
  REQUIRE(job.keys.state().redundancy_list.empty());
  job.care.gone(ClientId{99}, job.keys);  // a stranger
  REQUIRE(job.keys.state().participants.size() == 1);

  SECTION("but a closed rendezvous stays as it is") {
    job.state = job.keys.state();
    job.state.closed = true;
    job.write(client_a);
    job.care.gone(client_a, job.keys);
    REQUIRE(job.keys.state().participants.size() == 1);
  }
}

TEST_CASE("a text that is no state is read once", "[unit][torchrun]") {
  CaredJob job;
  job.enter(a, client_a);
  const std::size_t before = job.care.read_count();
  REQUIRE(job.keys.set(torchrun_state_key(RunId{"job"}), "bm9uZQ==").has_value());
  for (int i = 0; i < 100; ++i) job.care.wrote(client_b, job.keys);
  REQUIRE(job.care.read_count() == before + 1);
  job.enter(b, client_b);
  REQUIRE(job.care.read_count() == before + 2);
  REQUIRE(job.care.state().participants.contains(b));
}

TEST_CASE("a participant, too, reads a text that is no state once", "[unit][torchrun]") {
  Keys keys;
  TorchrunBoard board{RunId{"job"}};
  keys.map["torch.rendezvous.job"] = "bm9uZQ==";
  for (int i = 0; i < 100; ++i) REQUIRE_FALSE(board.read(keys, utc0, {}).has_value());
  REQUIRE(board.read_count() == 1);
  TorchrunState state;
  state.participants[a] = 0;
  state.last_heartbeats[a] = utc0;
  keys.put(state);
  REQUIRE(board.read(keys, utc0, {}).has_value());
  REQUIRE(board.state() == state);
  keys.map["torch.rendezvous.job"] = "bm9uZQ==";
  REQUIRE_FALSE(board.read(keys, utc0, {}).has_value());
}

TEST_CASE("participants learn of a newcomer at one moment", "[unit][torchrun]") {
  CaredJob job;
  job.enter(a, client_a);
  job.enter(b, client_b);
  job.complete(client_b);
  REQUIRE_FALSE(job.care.holds(client_a));
  const auto come = [&](const TorchrunNode& node, ClientId client) {
    job.state.wait_list.insert(node);
    job.state.last_heartbeats[node] = utc0;
    job.write(client);
  };

  SECTION("when the last one looks") {
    come(c, client_c);
    REQUIRE_FALSE(job.care.nobody_waits());
    REQUIRE_FALSE(job.care.holds(client_c));
    REQUIRE(job.care.holds(client_a));
    REQUIRE(job.care.holds(client_a));
    REQUIRE_FALSE(job.care.nobody_waits());
    REQUIRE(job.care.holds(client_b));
    REQUIRE(job.care.nobody_waits());
    REQUIRE_FALSE(job.care.holds(client_a));
  }
  SECTION("when the others have ended") {
    come(c, client_c);
    REQUIRE(job.care.holds(client_a));
    job.care.gone(client_b, job.keys);
    REQUIRE(job.care.nobody_waits());
  }
  SECTION("or after the time in which torchrun's agents look once") {
    come(c, client_c);
    REQUIRE(job.care.holds(client_a));
    job.turn(10s);
    job.turn(11100ms);
    REQUIRE_FALSE(job.care.nobody_waits());
    job.turn(11200ms);
    REQUIRE(job.care.nobody_waits());
  }
  SECTION("whatever is done to the clock of the day") {
    come(c, client_c);
    const auto waits = [](ClientId) { return false; };
    job.care.turn(job.keys, waits, TimePoint{} + 10s, utc0);
    job.care.turn(job.keys, waits, TimePoint{} + 11100ms, utc0 + 1h);
    REQUIRE_FALSE(job.care.nobody_waits());
    job.care.turn(job.keys, waits, TimePoint{} + 11200ms, utc0 - 1h);
    REQUIRE(job.care.nobody_waits());
  }
  SECTION("but not of one that has left the round and comes back: something failed") {
    job.state.participants.erase(b);
    come(b, client_b);
    REQUIRE(job.care.nobody_waits());
  }
}

TEST_CASE("who is in no list is not heard when it ends the job", "[unit][torchrun]") {
  CaredJob job;
  job.enter(a, client_a);
  job.enter(b, client_b);
  job.complete(client_b);
  REQUIRE_FALSE(job.care.outsider(client_a, job.keys));
  REQUIRE_FALSE(job.care.outsider(client_c, job.keys));  // a stranger
  remove_node(job.state, {}, b);
  job.write(client_a);
  REQUIRE(job.care.outsider(client_b, job.keys));
  SECTION("but in the exit barrier agents are dropped, and end the job") {
    job.keys.map["torch.rendezvous.job.0/torchelastic/agent/terminal_state/num_members"] = "1";
    REQUIRE_FALSE(job.care.outsider(client_b, job.keys));
  }
  SECTION("and where nobody else is, nobody is disturbed") {
    remove_node(job.state, {}, a);
    job.write(client_a);
    REQUIRE_FALSE(job.care.outsider(client_b, job.keys));
  }
}

TEST_CASE("an agent that was wrongly taken for dead is shown that it is called", "[unit][torchrun]") {
  CaredJob job;
  job.enter(a, client_a);
  job.enter(b, client_b);
  job.complete(client_a);
  REQUIRE_FALSE(job.care.recall(client_b, job.keys));
  job.leave(b, client_a);  // which has not heard of it for long
  const auto text = job.care.recall(client_b, job.keys);
  REQUIRE(text);
  const TorchrunState seen = *read_torchrun_state(*from_base64(*text));
  REQUIRE(seen.wait_list.size() == 1);
  REQUIRE(job.keys.state().wait_list.empty());  // nobody else is disturbed
  REQUIRE_FALSE(job.care.recall(client_a, job.keys));
  SECTION("but one that left by itself knows") {
    job.state.participants[b] = 1;
    job.write(client_b);
    job.leave(b, client_b);
    REQUIRE_FALSE(job.care.recall(client_b, job.keys));
  }
  SECTION("nor in the exit barrier") {
    job.keys.map["torch.rendezvous.job.0/torchelastic/agent/terminal_state/num_members"] = "1";
    REQUIRE_FALSE(job.care.recall(client_b, job.keys));
  }
  SECTION("nor where all are called already") {
    job.state.wait_list.insert(c);
    job.write(client_c);
    REQUIRE_FALSE(job.care.recall(client_b, job.keys));
  }
}

TEST_CASE("the view of a job shows agents of both kinds", "[unit][torchrun]") {
  CaredJob job;
  const TorchrunNode ours = our_node("10.0.0.9", 7, 0, false), caller = caller_for(ours);
  job.enter(a, client_a);
  job.enter(ours, client_b);
  REQUIRE(job.care.view({}).phase == "gathering");
  job.complete(client_b);
  job.state.wait_list = {c, caller};
  job.write(client_c);
  const JobView view = job.care.view({.min_nodes = 2});
  REQUIRE(view.phase == "running");
  REQUIRE(view.min_nodes == 2);
  REQUIRE(view.nodes ==
          std::vector<JobView::Node>{{.host = "10.0.0.9", .state = "seated", .group_rank = GroupRank{0}},
                                     {.host = "a", .state = "seated", .group_rank = GroupRank{1}, .torchruns = true},
                                     {.host = "c", .state = "ready", .torchruns = true}});
  job.state.closed = true;
  job.write(client_a);
  REQUIRE(job.care.view({}).phase == "ended");
}

TEST_CASE("a torchrun agent that waits for a key is kept alive", "[unit][torchrun]") {
  CaredJob job;
  job.enter(a, client_a);
  job.enter(b, client_b);
  job.complete(client_b);
  const auto waits = [](ClientId client) { return client == client_b; };
  job.turn(500ms, waits);
  REQUIRE(job.state.last_heartbeats.at(b) == utc0);
  job.turn(2s, waits);
  REQUIRE(job.state.last_heartbeats.at(b) == utc0 + 2s);
  REQUIRE(job.state.last_heartbeats.at(a) == utc0);
  SECTION("also when the clock was set back") {
    job.care.turn(job.keys, waits, TimePoint{} + 4s, utc0 - 1h);
    REQUIRE(job.keys.state().last_heartbeats.at(b) == utc0 - 1h);
  }
  SECTION("but in the exit barrier nobody waits for heartbeats") {
    job.keys.map["torch.rendezvous.job.0/torchelastic/agent/terminal_state/num_members"] = "1";
    job.turn(9s, waits);
    REQUIRE(job.state.last_heartbeats.at(b) == utc0 + 2s);
  }
}

}  // namespace torchup
