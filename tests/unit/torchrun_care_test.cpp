#include "rendezvous/core/torchrun_care.hpp"

#include <catch2/catch.hpp>

#include "tests/support/torchrun_keys.hpp"

namespace torchup {
namespace {

using namespace std::chrono_literals;

const UtcTime utc0 = std::chrono::sys_days{std::chrono::year{2026} / 1 / 1};
const TorchrunNode a{"a", 1, 0}, b{"b", 2, 0}, c{"c", 3, 0};
constexpr ClientId client_a{10}, client_b{11}, client_c{12};

/// A job of torchrun's agents, whose writes care sees.
struct Job {
  Keys keys;
  TorchrunCare care{RunId{"job"}};
  TorchrunState state;

  void write(std::optional<ClientId> client) {
    keys.put(state);
    care.wrote(client, keys);
  }
  void enter(const TorchrunNode& node, ClientId client) {
    state.participants[node] = 0;
    state.last_heartbeats[node] = utc0;
    write(client);
  }
  void complete(ClientId client) {
    state.complete = true;
    std::int64_t rank = 0;
    for (auto& [node, its_rank] : state.participants) its_rank = rank++;
    write(client);
  }
  void next_round() {
    state.complete = false;
    ++state.round;
    write(client_a);
  }
  [[nodiscard]] std::string master(std::int64_t round) {
    const std::string prefix = "torch.rendezvous.job." + std::to_string(round) + "/MASTER_";
    if (!keys.map.contains(prefix + "ADDR")) return "";
    return keys.map[prefix + "ADDR"] + ":" + keys.map[prefix + "PORT"];
  }
};

}  // namespace

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
}

TEST_CASE("workers of torchrun's agents meet at our store in every round", "[unit][torchrun]") {
  Job job;
  job.enter(a, client_a);
  REQUIRE_FALSE(job.care.withholds(0, "MASTER_ADDR", "a"));  // there is no round yet
  job.enter(b, client_b);
  job.complete(client_b);
  REQUIRE(job.master(0).empty());  // group rank 0 may know better
  REQUIRE(job.care.withholds(0, "MASTER_ADDR", "a"));
  REQUIRE_FALSE(job.care.in_question());
  REQUIRE(job.care.withholds(0, "MASTER_PORT", "4711"));
  REQUIRE(job.care.in_question() == WorkerStore{"a", Port{4711}});
  REQUIRE_FALSE(job.care.withholds(0, "other", "x"));

  SECTION("where its own store answers") {
    job.care.answered(true, job.keys);
    REQUIRE(job.master(0) == "10.0.0.200:1000");
    REQUIRE(job.keys.emptied.empty());
    job.next_round();
    job.complete(client_a);
    REQUIRE(job.master(1) == "10.0.0.200:1000");  // which a newcomer waits for, and nobody else publishes
    REQUIRE(job.keys.emptied == std::vector<std::string>{"10.0.0.200:1000"});
    REQUIRE(job.care.withholds(1, "MASTER_ADDR", "b"));  // a new group rank 0 publishes its own
    REQUIRE(job.care.withholds(1, "MASTER_PORT", "4712"));
    REQUIRE(job.master(1) == "10.0.0.200:1000");
  }
  SECTION("but not where a worker is to open it") {
    job.care.answered(false, job.keys);
    REQUIRE(job.master(0) == "a:4711");
    job.next_round();
    job.complete(client_a);
    REQUIRE(job.master(1).empty());
    REQUIRE(job.care.withholds(1, "MASTER_ADDR", "a"));
    REQUIRE(job.care.withholds(1, "MASTER_PORT", "4713"));
    job.care.answered(false, job.keys);
    REQUIRE(job.master(1) == "a:4713");
    REQUIRE(job.keys.emptied.empty());
  }
  SECTION("an answer that comes when the round is over does nothing") {
    job.next_round();
    job.complete(client_a);
    job.care.answered(true, job.keys);
    REQUIRE(job.master(0).empty());
    REQUIRE(job.master(1).empty());
  }
}

TEST_CASE("a torchrun agent whose connection ends leaves its place", "[unit][torchrun]") {
  Job job;
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

TEST_CASE("participants learn of a newcomer at one moment", "[unit][torchrun]") {
  Job job;
  job.enter(a, client_a);
  job.enter(b, client_b);
  job.complete(client_b);
  REQUIRE_FALSE(job.care.holds(client_a));
  const auto come = [&](const TorchrunNode& node, ClientId client) {
    job.state.wait_list.insert(node);
    job.state.last_heartbeats[node] = utc0;
    job.write(client);
  };
  const auto waits = [](ClientId) { return false; };

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
  SECTION("or after a second") {
    come(c, client_c);
    REQUIRE(job.care.holds(client_a));
    job.care.turn(job.keys, waits, utc0 + 10s);
    job.care.turn(job.keys, waits, utc0 + 10900ms);
    REQUIRE_FALSE(job.care.nobody_waits());
    job.care.turn(job.keys, waits, utc0 + 11s);
    REQUIRE(job.care.nobody_waits());
  }
  SECTION("but not of one that has left the round and comes back: something failed") {
    job.state.participants.erase(b);
    come(b, client_b);
    REQUIRE(job.care.nobody_waits());
  }
}

TEST_CASE("the others form another round when a participant is lost", "[unit][torchrun]") {
  Job job;
  job.enter(a, client_a);
  const auto nobody_waits = [](ClientId) { return false; };
  const auto called = [&] { return !job.keys.state().wait_list.empty(); };
  const auto pass = [&](Duration time) {
    job.care.turn(job.keys, nobody_waits, utc0);
    job.care.turn(job.keys, nobody_waits, utc0 + std::chrono::duration_cast<std::chrono::microseconds>(time));
    job.state = job.keys.state();
  };
  const auto enter = [&](const TorchrunNode& node, ClientId client, int min_nodes) {
    if (static_cast<int>(job.state.participants.size()) + 1 == min_nodes) job.state.deadline = utc0 + 30s;
    job.enter(node, client);
  };
  /// As the agents that are left do, by the lease they know.
  const auto drop = [&](const TorchrunNode& node, ClientId writer) {
    remove_node(job.state, {}, node);
    job.write(writer);
  };
  const auto complete = [&] {
    job.state.deadline.reset();
    job.complete(client_a);
  };

  SECTION("of two to three") {
    enter(b, client_b, 2);
    enter(c, client_c, 2);
    complete();
    pass(10s);
    REQUIRE_FALSE(called());
    drop(c, client_a);
    pass(299ms);
    REQUIRE_FALSE(called());  // as one that goes to the wait list by itself
    pass(300ms);
    REQUIRE(called());
    REQUIRE(job.care.view({}).nodes.size() == 2);
    REQUIRE(job.care.holds(client_a));  // all learn of it at one moment
    REQUIRE(job.care.holds(client_b));
    REQUIRE(job.care.nobody_waits());

    drop(a, client_a);
    REQUIRE(called());
    drop(b, client_b);  // the last to leave: from here on it would call for a second round
    REQUIRE_FALSE(called());
    job.state = job.keys.state();
    enter(a, client_a, 2);
    enter(b, client_b, 2);
    complete();
    pass(10s);
    REQUIRE_FALSE(called());
  }
  SECTION("whose connection has ended: at once") {
    enter(b, client_b, 2);
    enter(c, client_c, 2);
    complete();
    job.care.gone(client_c, job.keys);
    REQUIRE(called());
  }
  SECTION("but not where fewer than the minimum are left") {
    enter(b, client_b, 2);
    complete();
    drop(b, client_a);
    pass(10s);
    REQUIRE_FALSE(called());
  }
  SECTION("nor where a job has one size") {
    job.state.participants[b] = 0;
    job.complete(client_b);
    drop(b, client_a);
    pass(10s);
    REQUIRE_FALSE(called());
  }
  SECTION("nor where somebody waits, who calls them too") {
    enter(b, client_b, 2);
    enter(c, client_c, 2);
    complete();
    job.state.wait_list.insert(c);
    drop(b, client_a);
    pass(10s);
    REQUIRE(job.keys.state().wait_list == std::set{c});
  }
  SECTION("nor in the exit barrier, which nobody leaves") {
    const std::string counter = "torch.rendezvous.job.0/torchelastic/agent/terminal_state/num_members";
    enter(b, client_b, 2);
    enter(c, client_c, 2);
    complete();
    SECTION("that was there before") {
      job.keys.map[counter] = "1";
      drop(c, client_a);
      pass(10s);
      REQUIRE_FALSE(called());
    }
    SECTION("that they go to instead") {
      drop(c, client_a);
      pass(1s);
      REQUIRE(called());
      job.keys.map[counter] = "1";
      job.write(client_a);
      job.state.last_heartbeats[b] = utc0 + 2s;
      job.write(client_b);
      REQUIRE_FALSE(called());
    }
  }
}

TEST_CASE("who is in no list is not heard when it ends the job", "[unit][torchrun]") {
  Job job;
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

TEST_CASE("between two rounds nobody sleeps", "[unit][torchrun]") {
  Job job;
  job.state.deadline = utc0 + 30s;  // of a minimum of one
  job.enter(a, client_a);
  job.enter(b, client_b);
  const auto nobody_waits = [](ClientId) { return false; };
  const auto turn = [&](UtcTime now) {
    job.care.turn(job.keys, nobody_waits, now);
    job.state = job.keys.state();
  };
  const auto leave = [&](const TorchrunNode& node, ClientId client) {
    remove_node(job.state, {}, node);
    job.write(client);
  };
  turn(utc0 + 31s);
  REQUIRE_FALSE(job.state.complete);  // the first round is theirs alone: others may be on their way
  REQUIRE_FALSE(job.care.idles(client_a));
  job.state.deadline.reset();
  job.complete(client_a);
  REQUIRE_FALSE(job.care.idles(client_a));

  leave(a, client_a);
  REQUIRE_FALSE(job.care.idles(client_a));  // it has to ask for its place yet
  job.state.wait_list.insert(a);
  job.state.last_heartbeats[a] = utc0 + 31s;
  job.write(client_a);
  REQUIRE(job.care.idles(client_a));  // until b has left too
  leave(b, client_b);
  REQUIRE_FALSE(job.care.idles(client_a));
  job.state.deadline = utc0 + 60s;
  job.enter(b, client_b);
  REQUIRE(job.care.idles(client_b));  // until the round is complete

  SECTION("it is when all have come") {
    turn(utc0 + 32s);
    REQUIRE_FALSE(job.state.complete);
    job.state.wait_list.clear();
    job.enter(a, client_a);
    turn(utc0 + 32s);
    REQUIRE(job.state.complete);
    REQUIRE(job.state.participants == std::map<TorchrunNode, std::int64_t>{{a, 0}, {b, 1}});
    REQUIRE_FALSE(job.care.idles(client_b));
  }
  SECTION("or have ended") {
    job.care.gone(client_a, job.keys);
    turn(utc0 + 32s);
    REQUIRE(job.state.complete);
  }
  SECTION("or were taken for dead") {
    remove_node(job.state, {}, a);
    job.write(client_b);
    turn(utc0 + 32s);
    REQUIRE(job.state.complete);
  }
  SECTION("but one that left by itself is on its way") {
    remove_node(job.state, {}, a);
    job.write(client_a);
    turn(utc0 + 32s);
    REQUIRE_FALSE(job.state.complete);
    SECTION("for as long as the last call lasts") {
      turn(utc0 + 61s);
      REQUIRE(job.state.complete);
    }
  }
  SECTION("not without the minimum") {
    job.state.deadline.reset();
    job.write(client_b);
    job.care.gone(client_a, job.keys);
    turn(utc0 + 32s);
    REQUIRE_FALSE(job.state.complete);
  }
  SECTION("and a closed rendezvous keeps nobody") {
    job.state.closed = true;
    job.write(client_a);
    REQUIRE_FALSE(job.care.idles(client_b));
  }
}

TEST_CASE("the view of a job shows agents of both kinds", "[unit][torchrun]") {
  Job job;
  const TorchrunNode ours{"!10.0.0.9", 0, 0}, caller{"~10.0.0.9", 0, -1};
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
  Job job;
  job.enter(a, client_a);
  job.enter(b, client_b);
  job.complete(client_b);
  const auto waits = [](ClientId client) { return client == client_b; };
  job.care.turn(job.keys, waits, utc0 + 500ms);
  REQUIRE(job.keys.state().last_heartbeats.at(b) == utc0);
  job.care.turn(job.keys, waits, utc0 + 2s);
  REQUIRE(job.keys.state().last_heartbeats.at(b) == utc0 + 2s);
  REQUIRE(job.keys.state().last_heartbeats.at(a) == utc0);
  job.keys.map["torch.rendezvous.job.0/torchelastic/agent/terminal_state/num_members"] = "1";
  job.care.turn(job.keys, waits, utc0 + 9s);  // the exit barrier
  REQUIRE(job.keys.state().last_heartbeats.at(b) == utc0 + 2s);
}

}  // namespace torchup
