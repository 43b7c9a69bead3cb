// When torchrun's agents at a store of ours form another round, and when that round is complete.
#include <catch2/catch.hpp>

#include "tests/support/torchrun_job.hpp"

namespace torchup {

using namespace test;

TEST_CASE("the others form another round when a participant is lost", "[unit][torchrun]") {
  CaredJob job;
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

TEST_CASE("between two rounds nobody sleeps", "[unit][torchrun]") {
  CaredJob job;
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
    job.ours_is(ours, OurNode::Stage::stops, 3s);
    job.turn(32s);
    REQUIRE_FALSE(job.state.complete);
    job.care.forget_ours();
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
  CaredJob job;
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
  CaredJob job;
  const TorchrunNode ours = our_node("10.0.0.9", 7, 0, false);
  job.enter(a, client_a);
  job.state.participants[ours] = 0;
  job.state.last_heartbeats[ours] = utc0;
  job.write(std::nullopt);
  job.complete(client_a);
  job.ours_is(ours, OurNode::Stage::in_round, 3s);
  job.turn(1s);
  REQUIRE(job.state.wait_list.empty());
  job.ours_is(ours, OurNode::Stage::stops, 3s);
  job.turn(1s);
  REQUIRE(job.state.wait_list.size() == 1);
  REQUIRE(is_caller(*job.state.wait_list.begin()));
}

TEST_CASE("where one of ours takes part, whoever is left of a round is called when a participant is lost",
          "[unit][torchrun]") {
  CaredJob job;
  const bool with_ours = GENERATE(false, true);
  const TorchrunNode third = with_ours ? our_node("10.0.0.9", 7, 0, false) : c;
  job.enter(a, client_a);
  job.state.participants[third] = 0;
  job.state.last_heartbeats[third] = utc0;
  job.write(std::nullopt);
  job.enter(b, client_b);
  job.complete(client_b);  // a job of three nodes
  if (with_ours) job.ours_is(third, OurNode::Stage::in_round, 3s);
  job.turn(1s);
  REQUIRE(job.state.wait_list.empty());
  SECTION("that is silent") {
    job.leave(b, client_a);
    job.turn(2s);
    job.turn(3s);
  }
  SECTION("that has ended") {
    job.care.gone(client_b, job.keys);
    job.turn(2s);
  }
  REQUIRE(job.state.participants.size() == 2);
  REQUIRE(job.state.wait_list.empty() != with_ours);  // ours stops, and theirs are not to count that as a failure
}

}  // namespace torchup
