// A coordinator that starts again with what it saved.
#include "rendezvous_job.hpp"

using namespace torchup;
using namespace torchup::rendezvous_job;

namespace {

Placement place_in(int round) { return {.round = Round{round}, .group_world_size = 3, .world_size = 6}; }
constexpr auto running = Resume::Stage::running;

}  // namespace

TEST_CASE("a restored round goes on, and a failure in it is everybody's", "[unit][rendezvous]") {
  Job job = running_job(3, {.min_nodes = 3, .max_nodes = 3, .max_restarts = 1, .lease = 1s});
  job.restart(20s);
  for (const char* name : {"c", "a", "b"}) REQUIRE(job.resume(name, running, place_in(0)).empty());
  REQUIRE(job.pass(job.now + 1min).empty());
  job.fail("c", 0, 5);
  const std::string stops = job.pass(job.now + 100ms);
  for (const char* name : {"a", "b", "c"}) {
    REQUIRE(stops.find(std::string{name} + " stop round 0 (failure): rank 5 on c exited with 3; restart 1 of 1") !=
            std::string::npos);
  }
  job.restart();
  for (const char* name : {"a", "b", "c"}) job.resume(name, Resume::Stage::stopping, place_in(0));
  for (const char* name : {"a", "b"}) REQUIRE(job.join(name).empty());
  REQUIRE(job.join("c") == "a host store of round 1\n");
  REQUIRE(job.say("a", StoreReady{Round{1}, Port{1}}).find("restarts 1") != std::string::npos);
  SECTION("a restart that was used up stays so") {
    job.restart();
    for (const char* name : {"a", "b", "c"}) REQUIRE(job.resume(name, running, place_in(1)).empty());
    job.fail("b", 1, 2);
    REQUIRE(job.pass(job.now + 100ms).find("c end 1: rank 2 on b exited with 3; all 1 restarts are used up") !=
            std::string::npos);
    SECTION("whoever was away hears the verdict") {
      job.restart();
      REQUIRE(job.resume("a", running, place_in(1)).find("a end 1: rank 2") == 0);
    }
  }
}

TEST_CASE("who does not come back to a restored round is lost to it", "[unit][rendezvous]") {
  Job job = running_job(3, {.min_nodes = 2, .max_nodes = 3, .lease = 1s});
  job.restart();
  job.resume("a", running, place_in(0));
  job.resume("b", running, place_in(0));
  REQUIRE(job.pass(job.now + return_limit_default - 1ms).empty());
  const std::string stops = job.pass(job.now + 1ms);
  REQUIRE(stops.find("a stop round 0 (membership): node c did not come back") != std::string::npos);
  REQUIRE(job.rendezvous.restart_count() == 0);
}

TEST_CASE("a restored job to which nobody comes back is forgotten", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .lease = 1s});
  job.restart();
  job.pass(job.now + return_limit_default - 1ms);
  REQUIRE_FALSE(job.rendezvous.forgettable(job.now));
  job.pass(job.now + 1ms);
  REQUIRE(job.rendezvous.forgettable(job.now));
}

TEST_CASE("a restored job that was joining goes on joining", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .join_timeout = 60s, .lease = 1s}};
  job.join("a");
  job.pass(t0 + 40s);
  job.restart(5s);
  REQUIRE(job.resume("a", Resume::Stage::ready).empty());
  SECTION("a further node completes it") { REQUIRE(job.join("b") == "a host store of round 0\n"); }
  SECTION("the time to join goes on, but for the pause") {
    REQUIRE(job.pass(t0 + 65s - 1ms).find("end") == std::string::npos);
    REQUIRE(job.pass(t0 + 65s).find("a end 66") != std::string::npos);
  }
}

TEST_CASE("a restored job forms no round with a node that is not back", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .lease = 1s}};
  job.join("a");
  job.restart();
  REQUIRE(job.join("b").empty());
  REQUIRE(job.resume("a", Resume::Stage::ready) == "a host store of round 0\n");
  SECTION("the store's port that was told in between is told again") {
    job.restart();
    job.resume("b", Resume::Stage::ready);
    REQUIRE(job.resume("a", Resume::Stage::ready) == "a host store of round 0\n");
  }
}

TEST_CASE("agents that tell of a later round than was saved start anew", "[unit][rendezvous]") {
  Job job = running_job(3, {.min_nodes = 3, .max_nodes = 3, .max_restarts = 3, .lease = 1s});
  job.restart();
  Placement later = place_in(4);
  later.restart_count = 2;
  REQUIRE(job.resume("a", running, later) ==
          "a stop round 4 (membership): the coordinator started again with an old state\n");
  REQUIRE(job.resume("b", running, later) == "b stop round 4 (membership): the round is over\n");
  job.resume("c", running, later);
  for (const char* name : {"a", "b"}) REQUIRE(job.join(name).empty());
  REQUIRE(job.join("c") == "a host store of round 5\n");
  REQUIRE(job.rendezvous.restart_count() == 2);
}

TEST_CASE("a round that was formed after the state was saved last keeps its number", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .lease = 1s}};
  job.join("a");
  const std::string saved = job.saved();
  job.join("b");
  REQUIRE(job.say("a", StoreReady{Round{0}, Port{4000}}).find("b round 0") != std::string::npos);
  job.restart_from(saved);
  const Placement place{.round = Round{0}, .group_world_size = 2, .world_size = 4};
  const Placement stopped = after_stop(place, StopCause::membership_change);
  const auto ready = [&](const std::string& name, const std::optional<Placement>& former) {
    Join join = job.join_of(name);
    join.former = former;
    job.connect(name);
    return job.step(Resumed{job.peer_of.at(name), {.join = join}});
  };
  SECTION("its workers run") {
    REQUIRE(job.resume("a", running, place) == "a stop round 0 (membership): the round is over\n");
    REQUIRE(job.join_anew("b", 1, stopped).empty());
    REQUIRE(job.join("a") == "a host store of round 1\n");
  }
  SECTION("its workers are being stopped") {
    REQUIRE(job.resume("a", Resume::Stage::stopping, stopped).empty());
    REQUIRE(job.join_anew("b", 1, stopped).empty());  // a is awaited
    REQUIRE(job.join("a") == "a host store of round 1\n");
  }
  SECTION("it is over") {
    REQUIRE(ready("a", stopped).empty());
    REQUIRE(job.join_anew("b", 1).ends_with("a host store of round 1\n"));
  }
  SECTION("a newcomer was in it") {
    REQUIRE(job.join_anew("b", 1, stopped).empty());
    REQUIRE(ready("a", {}) == "a host store of round 1\n");
  }
}

TEST_CASE("who has left a later round than was saved is placed in none that is older", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .lease = 1s});
  job.restart();  // with round 0, while they were in round 3
  Join join = job.join_of("a");
  join.former = after_stop({.round = Round{3}, .group_world_size = 2, .world_size = 4}, StopCause::membership_change);
  job.connect("a");
  REQUIRE(job.step(Resumed{job.peer_of.at("a"), {.join = join}}).find("round 0: node") == std::string::npos);
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::gathering);
  REQUIRE(job.resume("b", Resume::Stage::ready) == "a host store of round 4\n");
}

TEST_CASE("snapshots share what their nodes told of themselves, however many are made", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .max_restarts = 1});
  const JobSnapshot first = job.rendezvous.snapshot(job.now);
  const auto same = [&](const char* name, std::size_t member) {
    const JobSnapshot second = job.rendezvous.snapshot(job.now);
    REQUIRE(second.members[member].join->host == name);
    return &*first.members[member].join == &*second.members[member].join;
  };
  REQUIRE(same("a", 0));
  job.fail("b", 0, 2);
  job.pass(job.now + 20ms);
  job.join("a");
  SECTION("joining again as they are is no news") { REQUIRE(same("a", 0)); }
  SECTION("another is, and leaves what was saved as it was") {
    job.join("b", 3);
    REQUIRE_FALSE(same("b", 1));
    REQUIRE(first.members[1].join->local_world_size == 2);
  }
}
