// A coordinator that goes on with another's job, while the other may still be there.
#include "../rendezvous/rendezvous_job.hpp"

using namespace torchup;
using namespace torchup::rendezvous_job;

namespace {

constexpr auto running = Resume::Stage::running;
Placement place_in(int round) { return {.round = Round{round}, .group_world_size = 3, .world_size = 6}; }

void take_over(Job& job, Takeover from, Duration pause = 1s) {
  const std::string saved = job.saved();
  job.now += pause;
  job.rendezvous = Rendezvous{RendezvousSettings{}, decode_job(saved)->snapshot, job.now, from};
  job.peer_of.clear();
}

Job three() { return running_job(3, {.min_nodes = 2, .max_nodes = 3, .lease = 1s}); }

}  // namespace

TEST_CASE("while nobody of the round has come back after a takeover nobody is given up", "[unit][takeover]") {
  Job job = three();
  take_over(job, {});
  REQUIRE(job.pass(job.now + 10min).empty());
  REQUIRE(job.rendezvous.member_count() == 3);
  SECTION("from the first one's return the limit counts") {
    job.resume("a", running, place_in(0));
    job.resume("b", running, place_in(0));
    REQUIRE(job.pass(job.now + return_limit_default - 1ms).empty());
    REQUIRE(job.pass(job.now + 1ms).find("a stop round 0 (membership): node c did not come back") == 0);
  }
}

TEST_CASE("the limit counts from the last one's return", "[unit][takeover]") {
  Job job = three();
  take_over(job, {});
  job.resume("a", running, place_in(0));
  job.pass(job.now + 20s);
  job.resume("b", running, place_in(0));
  REQUIRE(job.pass(job.now + return_limit_default - 1ms).empty());
  REQUIRE(job.pass(job.now + 1ms).find("node c did not come back") != std::string::npos);
}

TEST_CASE("with a proved end the holder's agent is lost at once, and the others after the limit", "[unit][takeover]") {
  Job job = three();
  take_over(job, {.proved = true, .holder = agent_name(NodeId{"node-c"})});
  job.step(Tick{});
  REQUIRE(job.rendezvous.member_count() == 2);
  REQUIRE(job.resume("a", running, place_in(0)) == "a stop round 0 (membership): the round is over\n");
  SECTION("who comes back forms the next round") {
    job.resume("b", running, place_in(0));
    REQUIRE(job.join("a").empty());
    REQUIRE(job.join("b") == "a host store of round 1\n");
  }
  SECTION("who does not is given up") {
    REQUIRE(job.pass(job.now + return_limit_default - 1ms).find("b") == std::string::npos);
    job.pass(job.now + 1ms);
    REQUIRE(job.rendezvous.member_count() == 1);
  }
}

TEST_CASE("an end that is not proved loses no holder", "[unit][takeover]") {
  Job job = three();
  take_over(job, {.proved = false, .holder = agent_name(NodeId{"node-c"})});
  job.step(Tick{});
  REQUIRE(job.rendezvous.member_count() == 3);
}

TEST_CASE("hosts that have all joined anew are witnesses enough", "[unit][takeover]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .lease = 1s});
  take_over(job, {});
  REQUIRE(job.join_anew("a", 1).empty());
  REQUIRE(job.pass(job.now + 1min).find("host store") == std::string::npos);
  REQUIRE(job.join_anew("b", 1).find("host store of round 1") != std::string::npos);
}

TEST_CASE("a round is complete while none of its members was lost and nothing has ended it", "[unit][takeover]") {
  Job job = three();
  REQUIRE(job.rendezvous.complete_round() == Round{0});
  SECTION("a decision ends it") {
    job.fail("a", 0, 1);
    REQUIRE(job.rendezvous.complete_round() == Round{0});
    job.pass(job.now + 1s);
    REQUIRE_FALSE(job.rendezvous.complete_round());
  }
  SECTION("a loss of one whose workers are done") {
    job.say("c", WorkersSucceeded{Round{0}});
    job.gone("c");
    REQUIRE_FALSE(job.rendezvous.complete_round());
  }
}

TEST_CASE("without a takeover the limit is what it was", "[unit][takeover]") {
  Job job = three();
  job.restart();
  job.pass(job.now + return_limit_default);
  REQUIRE(job.rendezvous.member_count() == 0);
}
