// At a store of ours its owner decides who is gone and when a round must end.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/torchrun_job.hpp"

namespace torchup {

using namespace test;

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
    ours_is(ours, OurNode::Stage::in_round, 4s);
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
    job.care.forget_ours();
    job.pass(60s, true, false);
    REQUIRE(job.state.participants.contains(b));
  }
}

}  // namespace torchup
