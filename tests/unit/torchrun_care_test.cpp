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
  TorchrunCare care{{.run_id = RunId{"job"}}};
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
  /// One turn at that time on both clocks.
  void turn(
      Duration at, const std::function<bool(ClientId)>& waits = [](ClientId) { return false; }) {
    care.turn(keys, waits, TimePoint{} + at, utc0 + std::chrono::duration_cast<std::chrono::microseconds>(at));
    state = keys.state();
  }
  void leave(const TorchrunNode& node, ClientId client) {
    remove_node(state, {}, node);
    write(client);
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
    job.turn(10s);
    job.turn(10900ms);
    REQUIRE_FALSE(job.care.nobody_waits());
    job.turn(11s);
    REQUIRE(job.care.nobody_waits());
  }
  SECTION("whatever is done to the clock of the day") {
    come(c, client_c);
    const auto waits = [](ClientId) { return false; };
    job.care.turn(job.keys, waits, TimePoint{} + 10s, utc0);
    job.care.turn(job.keys, waits, TimePoint{} + 10900ms, utc0 + 1h);
    REQUIRE_FALSE(job.care.nobody_waits());
    job.care.turn(job.keys, waits, TimePoint{} + 11s, utc0 - 1h);
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
  const auto called = [&] { return !job.keys.state().wait_list.empty(); };
  const auto pass = [&](Duration time) {
    job.turn(0s);
    job.turn(time);
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
  job.turn(31s);
  REQUIRE_FALSE(job.state.complete);  // the first round is theirs alone: others may be on their way
  REQUIRE_FALSE(job.care.idles(client_a));
  job.state.deadline.reset();
  job.complete(client_a);
  REQUIRE_FALSE(job.care.idles(client_a));

  job.leave(a, client_a);
  REQUIRE_FALSE(job.care.idles(client_a));  // it has to ask for its place yet
  job.state.wait_list.insert(a);
  job.state.last_heartbeats[a] = utc0 + 31s;
  job.write(client_a);
  REQUIRE(job.care.idles(client_a));  // until b has left too
  job.leave(b, client_b);
  REQUIRE_FALSE(job.care.idles(client_a));
  job.state.deadline = utc0 + 61s;
  job.state.participants[b] = 0;
  job.state.last_heartbeats[b] = utc0 + 31s;  // by its own clock, which may differ from ours
  job.write(client_b);
  REQUIRE(job.care.idles(client_b));  // until the round is complete

  SECTION("it is when all have come") {
    job.turn(32s);
    REQUIRE_FALSE(job.state.complete);
    job.state.wait_list.clear();
    job.enter(a, client_a);
    job.turn(32s);
    REQUIRE(job.state.complete);
    REQUIRE(job.state.participants == std::map<TorchrunNode, std::int64_t>{{a, 0}, {b, 1}});
    REQUIRE_FALSE(job.care.idles(client_b));
  }
  SECTION("or have ended") {
    job.care.gone(client_a, job.keys);
    job.turn(32s);
    REQUIRE(job.state.complete);
  }
  SECTION("or were taken for dead") {
    job.leave(a, client_b);
    job.turn(32s);
    REQUIRE(job.state.complete);
  }
  SECTION("but one that left by itself is on its way") {
    job.leave(a, client_a);
    job.turn(32s);
    REQUIRE_FALSE(job.state.complete);
    SECTION("for as long as the last call lasts") {
      job.turn(61999ms);
      REQUIRE_FALSE(job.state.complete);
      job.turn(62s);
      REQUIRE(job.state.complete);
    }
  }
  SECTION("and so is one of ours, as long as it has a part in the job") {
    job.leave(a, client_b);
    const TorchrunNode ours = our_node("10.0.0.9", 7, 0, false);
    job.care.ours({{ours, true}});
    job.turn(32s);
    REQUIRE_FALSE(job.state.complete);
    job.care.ours({});
    job.turn(32s);
    REQUIRE(job.state.complete);
  }
  SECTION("and a closed rendezvous keeps nobody") {
    job.state.closed = true;
    job.write(client_a);
    REQUIRE_FALSE(job.care.idles(client_b));
  }
}

TEST_CASE("no round is complete with fewer than the minimum", "[unit][torchrun]") {
  Job job;
  const int min_nodes = 2;
  job.enter(a, client_a);
  job.state.deadline = utc0 + 30s;
  job.enter(b, client_b);
  job.state.deadline.reset();
  job.complete(client_a);
  // One leaves, and the other; the first enters again, and the second is about to.
  job.leave(a, client_a);
  job.leave(b, client_b);
  REQUIRE(job.state.round == 1);
  job.state.deadline.reset();
  job.enter(a, client_a);
  SECTION("where one ends before it has come") { job.care.gone(client_b, job.keys); }
  SECTION("where one ends that had come: the last call is over for the other too") {
    job.state.deadline = utc0 + 30s;
    job.enter(b, client_b);
    REQUIRE(static_cast<int>(job.state.participants.size()) == min_nodes);
    job.care.gone(client_b, job.keys);
    REQUIRE_FALSE(job.keys.state().deadline);
  }
  for (const Duration at : {1s, 31s, 100s}) {
    job.turn(at);
    REQUIRE_FALSE(job.state.complete);
  }
  job.state.deadline = utc0 + 130s;
  job.enter(c, client_c);
  job.turn(101s);
  REQUIRE(job.state.complete);
}

TEST_CASE("the others are called while one of ours stops its workers", "[unit][torchrun]") {
  Job job;
  const TorchrunNode ours = our_node("10.0.0.9", 7, 0, false);
  job.enter(a, client_a);
  job.state.participants[ours] = 0;
  job.state.last_heartbeats[ours] = utc0;
  job.write(std::nullopt);
  job.complete(client_a);
  job.care.ours({{ours, false}});
  job.turn(1s);
  REQUIRE(job.state.wait_list.empty());
  job.care.ours({{ours, true}});
  job.turn(1s);
  REQUIRE(job.state.wait_list.size() == 1);
  REQUIRE(is_caller(*job.state.wait_list.begin()));
}

TEST_CASE("an agent that was wrongly taken for dead is shown that it is called", "[unit][torchrun]") {
  Job job;
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
  Job job;
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
  Job job;
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
