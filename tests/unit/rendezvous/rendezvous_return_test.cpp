#include "rendezvous_job.hpp"

using namespace torchup;
using namespace torchup::rendezvous_job;

TEST_CASE("an agent whose connection broke keeps its place if it is back in time", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 1, .max_nodes = 2, .last_call = 1s, .lease = 10s});
  const Placement mine{.round = Round{0}};
  REQUIRE(job.gone("b", false).empty());
  SECTION("back") {
    job.now += 900ms;
    const Peer peer = job.connect("b");
    REQUIRE(job.step(Resumed{peer, {.join = job.join_of("b"), .stage = Resume::Stage::running, .placement = mine}})
                .empty());
    REQUIRE(job.pass(job.now + 30s).empty());
  }
  SECTION("not back: it may not know of the break, and has its workers until its lease is over") {
    REQUIRE(job.pass(job.now + 10s - 1ns).empty());
    REQUIRE(job.pass(job.now + 1ns).find("node b did not come back") != std::string::npos);
  }
  SECTION("too late: it is fenced") {
    job.pass(job.now + 11s);
    const Peer peer = job.connect("b");
    REQUIRE(job.step(Resumed{peer, {.join = job.join_of("b"), .stage = Resume::Stage::running, .placement = mine}}) ==
            "b stop round 0 (fenced): this node was given up while it was silent\n");
  }
}

TEST_CASE("what a former connection brings late takes nobody's place", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .lease = 3s}, {.started = t0 - return_limit_default}};
  job.connect("b");
  const Peer former = job.peer_of.at("b");
  job.connect("b");
  const Peer latter = job.peer_of.at("b");
  REQUIRE(job.step(Resumed{latter, {.join = job.join_of("b")}}).empty());
  REQUIRE(job.step(Said{former, job.join_of("b")}).empty());
  REQUIRE(job.step(Gone{former, false}).empty());
  REQUIRE(job.pass(job.now + 2s).find("end") == std::string::npos);
  REQUIRE(job.join("a") == "a host store of round 0\n");
  REQUIRE(job.say("a", StoreReady{Round{0}, Port{1}}).find("b round 0: node 1 of 2") != std::string::npos);
}

TEST_CASE("a node that was lost before any round tells of no coordinator before this one", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .lease = 1s}, {.started = t0}};
  const bool was_here = GENERATE(true, false);
  if (was_here) job.join("b");
  if (was_here) job.gone("b", false);
  job.pass(t0 + redial_limit);
  const Peer peer = job.connect("b");
  job.step(Resumed{peer, {.join = job.join_of("b")}});
  REQUIRE((job.join("a") == "a host store of round 0\n") == was_here);  // else a round of others may be running
}

TEST_CASE("what was lost with a connection is said again", "[unit][rendezvous]") {
  const auto back = [](Job& job, Resume resume) {
    job.gone("b", false);
    const Peer peer = job.connect("b");
    resume.join = job.join_of("b");
    return job.step(Resumed{peer, resume});
  };
  SECTION("the placement") {
    Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2});
    REQUIRE(back(job, {.stage = Resume::Stage::ready}).starts_with("b round 0: node 1 of 2, ranks from 2 of 4"));
  }
  SECTION("the end of the workers") {
    Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2});
    job.say("a", WorkersSucceeded{Round{0}});
    REQUIRE(back(job, {.stage = Resume::Stage::succeeded, .placement = Placement{.round = Round{0}}}).find("b end 0") !=
            std::string::npos);
  }
  SECTION("the order to stop, and the verdict") {
    Job job = running_job(3, {.min_nodes = 2, .max_nodes = 3});
    job.gone("b", false);
    job.gone("c");
    const Peer peer = job.connect("b");
    const Resume running{job.join_of("b"), Resume::Stage::running, Placement{.round = Round{0}}, {}, {}};
    REQUIRE(job.step(Resumed{peer, running}) == "b stop round 0 (membership): the round is over\n");
    job.say("a", Leave{.exit_code = 130, .reason = "interrupted"});
    REQUIRE(back(job, running) == "b end 130: interrupted\n");
  }
  SECTION("the order to host the store, and its answer") {
    Job job{{.min_nodes = 2, .max_nodes = 2}};
    job.join("c");
    job.join("b");
    REQUIRE(back(job, {.stage = Resume::Stage::ready}) == "b host store of round 0\n");
    REQUIRE(back(job, {.stage = Resume::Stage::ready, .store = StoreReady{Round{0}, Port{9}}}).find(":9,") !=
            std::string::npos);
  }
}

TEST_CASE("a hosting agent that starts anew calls the others into another round at once", "[unit][rendezvous]") {
  const auto stage = GENERATE(Resume::Stage::running, Resume::Stage::failed, Resume::Stage::succeeded);
  Job job{{.min_nodes = 3, .max_nodes = 3, .max_restarts = 2}};
  job.connect("a", "", true);
  job.join("a");
  const Placement mine{
      .round = Round{4}, .group_world_size = 3, .world_size = 6, .restart_count = 1, .membership_changes = 3};
  REQUIRE(job.resume("b", stage, mine) == "b stop round 4 (membership): the hosting agent starts anew\n");
  Join known_already = job.join_of("c");  // it saw the host's process end
  known_already.node = NodeId{"node-c-2"};
  known_already.former = mine;
  job.connect("c");
  REQUIRE(job.say("c", known_already).empty());
  REQUIRE(job.join("b") == "a host store of round 5\n");
  REQUIRE(job.rendezvous.restart_count() == 1);
}

TEST_CASE("a coordinator that starts again learns the running round from its agents", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .max_restarts = 3}};
  const auto resume = [&](const std::string& name, int group_rank, Resume::Stage stage) {
    Resume said{job.join_of(name),
                stage,
                Placement{.round = Round{7},
                          .group_rank = GroupRank{group_rank},
                          .group_world_size = 2,
                          .first_rank = Rank{2 * group_rank},
                          .world_size = 4,
                          .restart_count = 1},
                {},
                {}};
    const Peer peer = job.connect(name);
    return job.step(Resumed{peer, said});
  };
  REQUIRE(resume("b", 1, Resume::Stage::running).empty());
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::restoring);
  SECTION("all are back: nothing was restarted, nothing forgotten") {
    REQUIRE(resume("a", 0, Resume::Stage::succeeded).empty());
    REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
    REQUIRE(job.rendezvous.round() == Round{7});
    REQUIRE(job.rendezvous.restart_count() == 1);
    REQUIRE(job.say("b", WorkersSucceeded{Round{7}}).find("a end 0") != std::string::npos);
  }
  SECTION("one is not back in time: the next round has a higher number") {
    REQUIRE(job.pass(t0 + return_limit_default - 1ns).empty());
    REQUIRE(job.pass(t0 + return_limit_default).find("b stop round 7 (membership): 1 of 2 nodes came back") !=
            std::string::npos);
    job.join("b");
    REQUIRE(job.join("c") == "b host store of round 8\n");
  }
}

TEST_CASE("a coordinator without memory waits for others as long as their workers may run", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .max_restarts = 3, .lease = 60s}};
  Resume said{
      job.join_of("b"),
      Resume::Stage::running,
      Placement{
          .round = Round{7}, .group_rank = GroupRank{1}, .group_world_size = 2, .first_rank = Rank{2}, .world_size = 4},
      {},
      {}};
  const Peer peer = job.connect("b");
  job.step(Resumed{peer, said});
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::restoring);
  REQUIRE(job.pass(t0 + 60s - 1ns).find("stop round") == std::string::npos);
  REQUIRE(job.pass(t0 + 60s).find("b stop round 7 (membership): 1 of 2 nodes came back") != std::string::npos);
}

TEST_CASE("and so it does where the first to tell of the round is in it no more", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .lease = 60s}};
  const Placement mine{.round = Round{7}, .group_world_size = 2, .world_size = 4};
  const bool stops = GENERATE(true, false);
  if (stops) {
    job.resume("b", Resume::Stage::stopping, mine);
    job.join("b");
  } else {
    job.join_anew("b", 1, mine);
  }
  job.join("c");
  REQUIRE(job.pass(t0 + 60s - 1ns).find("host store") == std::string::npos);
  REQUIRE(job.pass(t0 + 60s) == "b host store of round 8\n");
}

TEST_CASE("neither rounds nor used-up restarts go back when a coordinator starts anew", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .max_restarts = 3}};
  Join join = job.join_of("b");
  join.former = Placement{.round = Round{4}, .restart_count = 2};
  job.connect("b");
  job.say("b", join);
  REQUIRE(job.join("a") == "a host store of round 5\n");
  REQUIRE(job.say("a", StoreReady{Round{5}, Port{1}}).find("restarts 2") != std::string::npos);
  job.fail("a", 5, 0);
  job.now += 20ms;
  REQUIRE(job.step(Tick{}).find("restart 3 of 3") != std::string::npos);
}

// ---- a coordinator that starts again without memory

namespace {

constexpr auto running = Resume::Stage::running;

/// Node `group_rank` of a round of `nodes` nodes with two workers each.
Placement seat_in(int round, int group_rank, int nodes = 2) {
  return {.round = Round{round},
          .group_rank = GroupRank{group_rank},
          .group_world_size = nodes,
          .first_rank = Rank{2 * group_rank},
          .world_size = 2 * nodes,
          .first_role_rank = Rank{2 * group_rank},
          .role_world_size = 2 * nodes};
}

}  // namespace

TEST_CASE("spares that are back first take no place in a round that runs", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .join_timeout = 5s}};
  for (const char* spare : {"y", "z"}) REQUIRE(job.resume(spare, Resume::Stage::ready).empty());
  REQUIRE(job.join("x").empty());
  SECTION("its nodes come, and it goes on") {
    REQUIRE(job.pass(t0 + 29s).find("host store") == std::string::npos);
    REQUIRE(job.rendezvous.roster(job.now).find("waits for nodes of a round that may be running") != std::string::npos);
    REQUIRE(job.resume("b", running, seat_in(7, 1)).empty());
    REQUIRE(job.resume("a", running, seat_in(7, 0)).empty());
    REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
    REQUIRE(job.rendezvous.round() == Round{7});
    REQUIRE(job.pass(job.now + 1min).empty());
    REQUIRE(job.say("a", WorkersSucceeded{Round{7}}).empty());
    REQUIRE(job.say("b", WorkersSucceeded{Round{7}}).find("a end 0") != std::string::npos);
  }
  SECTION("nobody comes in 30 s: then they are the job") {
    REQUIRE(job.pass(t0 + return_limit_default - 1ns).find("host store") == std::string::npos);
    REQUIRE(job.pass(t0 + return_limit_default).find("y host store of round 0\n") != std::string::npos);
  }
}

TEST_CASE("agents that are new to a coordinator that is new wait until those of a running round have dialled",
          "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2}, {.started = t0}};
  job.join("x");
  REQUIRE(job.join("y").empty());
  SECTION("none comes") {
    REQUIRE(job.pass(t0 + redial_limit - 1ns).find("host store") == std::string::npos);
    REQUIRE(job.pass(t0 + redial_limit) == "x host store of round 0\n");
  }
  SECTION("one does: they wait for the other") {
    job.resume("a", running, seat_in(7, 0));
    REQUIRE(job.pass(t0 + 20s).find("host store") == std::string::npos);
    job.resume("b", running, seat_in(7, 1));
    REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
    REQUIRE(job.rendezvous.round() == Round{7});
  }
  SECTION("the coordinator sleeps meanwhile: the time begins again") {
    job.at(t0 + 10s);
    REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::gathering);
  }
}

TEST_CASE("a coordinator that lives with an agent knows all that runs", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2}, {.started = t0}};
  job.connect("x", "", true);
  job.join("x");
  REQUIRE(job.join("y") == "x host store of round 0\n");
}

TEST_CASE("a coordinator that has been there for long waits for nobody's return", "[unit][rendezvous]") {
  const bool young = GENERATE(false, true);
  Job job{{.min_nodes = 2, .max_nodes = 2}, {.started = t0 - return_limit_default + (young ? 1ns : 0ns)}};
  job.resume("a", Resume::Stage::ready);
  REQUIRE(job.resume("b", Resume::Stage::ready) == (young ? "" : "a host store of round 0\n"));
}

TEST_CASE("a restart of the coordinator while all are stopping counts each round and restart once",
          "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .max_restarts = 2}};
  Placement first = seat_in(3, 0), second = seat_in(3, 1);
  first.restart_count = second.restart_count = 1;
  const Placement stopped = after_stop(first, StopCause::worker_failure);
  const auto joins_with = [&](const std::string& name, const Placement& former) {
    Join join = job.join_of(name);
    join.former = former;
    return job.say(name, join);
  };
  SECTION("both were told to stop") {
    REQUIRE(job.resume("a", Resume::Stage::stopping, stopped).empty());
    REQUIRE(job.resume("b", Resume::Stage::stopping, after_stop(second, StopCause::worker_failure)).empty());
    REQUIRE(joins_with("b", after_stop(second, StopCause::worker_failure)).empty());
    REQUIRE(joins_with("a", stopped) == "a host store of round 4\n");
  }
  SECTION("one has joined again already") {
    job.connect("b");
    Join joined = job.join_of("b");
    joined.former = after_stop(second, StopCause::worker_failure);
    REQUIRE(job.step(Resumed{job.peer_of.at("b"), {.join = joined}}).empty());
    REQUIRE(job.resume("a", Resume::Stage::stopping, stopped).empty());
    REQUIRE(joins_with("a", stopped) == "a host store of round 4\n");
  }
  SECTION("one has not heard of it: it is told so, with the cause") {
    const bool first_to_come = GENERATE(false, true);
    const std::string told = "b stop round 3 (failure): ";
    if (first_to_come) {
      REQUIRE(job.resume("b", Resume::Stage::failed, second).empty());
      REQUIRE(job.resume("a", Resume::Stage::stopping, stopped).find(told) == 0);
    } else {
      REQUIRE(job.resume("a", Resume::Stage::stopping, stopped).empty());
      REQUIRE(job.resume("b", running, second).find(told) == 0);
    }
    joins_with("b", after_stop(second, StopCause::worker_failure));
    REQUIRE(joins_with("a", stopped) == "a host store of round 4\n");
  }
  SECTION("one lost its place meanwhile, and is there as another") {
    REQUIRE(job.join_anew("b", 1, after_stop(second, StopCause::fenced)).empty());
    REQUIRE(job.resume("a", Resume::Stage::stopping, stopped).empty());
    REQUIRE(joins_with("a", stopped) == "a host store of round 4\n");
  }
  REQUIRE(job.rendezvous.restart_count() == 2);
  REQUIRE(job.say("a", StoreReady{Round{4}, Port{1}}).find("restarts 2") != std::string::npos);
  job.fail("a", 4, 0);
  REQUIRE(job.pass(job.now + 100ms).find("all 2 restarts are used up") != std::string::npos);
}

TEST_CASE("of two rounds that agents tell of the newer one runs", "[unit][rendezvous]") {
  const bool older_first = GENERATE(false, true);
  Job job{{.min_nodes = 2, .max_nodes = 2}};
  std::string told;
  if (older_first) told += job.resume("c", running, seat_in(5, 1));
  REQUIRE(job.resume("a", running, seat_in(6, 0)).find("stop round 6") == std::string::npos);
  if (!older_first) told += job.resume("c", running, seat_in(5, 1));
  REQUIRE(job.resume("b", running, seat_in(6, 1)).empty());
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
  REQUIRE(job.rendezvous.round() == Round{6});
  REQUIRE((older_first || told == "c stop round 5 (membership): the round is over\n"));
}

TEST_CASE("a round number that an agent was in is not used again, whoever came first", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2}};
  job.join("x");
  REQUIRE(job.join("y") == "x host store of round 0\n");
  const bool hosting = GENERATE(true, false);
  if (!hosting) job.say("x", StoreReady{Round{0}, Port{1}});
  REQUIRE(job.join_anew("a", 1, after_stop(seat_in(8, 0), StopCause::fenced)).empty());
  if (hosting) REQUIRE(job.say("x", StoreReady{Round{0}, Port{1}}).find("x round 0") != std::string::npos);
  job.gone("y");
  REQUIRE(job.join("x").find("host store of round 9\n") != std::string::npos);
}

TEST_CASE("an agent that tells of a later round than was saved brings its restarts along", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .max_restarts = 1, .lease = 1s});
  job.restart();
  Placement later = seat_in(1, 0);
  later.restart_count = 1;
  job.resume("a", running, later);
  job.resume("b", running, later);
  job.join("a");
  REQUIRE(job.join("b") == "a host store of round 2\n");
  job.say("a", StoreReady{Round{2}, Port{1}});
  job.fail("a", 2, 0);
  REQUIRE(job.pass(job.now + 100ms).find("all 1 restarts are used up") != std::string::npos);
}

TEST_CASE("a node that leaves before the others are back takes the job along only where they are too few",
          "[unit][rendezvous]") {
  const int nodes = GENERATE(2, 3);
  Job job{{.min_nodes = 2, .max_nodes = nodes}};
  job.resume("b", running, seat_in(7, 1, nodes));
  REQUIRE(job.say("b", Leave{.ends_job = false, .exit_code = 143, .reason = "SIGTERM"}) == "b end 143: SIGTERM\n");
  const std::string told = job.resume("a", running, seat_in(7, 0, nodes));
  if (nodes == 2) {
    REQUIRE(told == "a end 143: node b left (SIGTERM) and fewer than 2 nodes remain\n");
    return;
  }
  REQUIRE(told == "a stop round 7 (membership): the round is over\n");
  job.resume("c", running, seat_in(7, 2, nodes));
  for (const char* name : {"a", "c"}) REQUIRE(job.join(name).empty());
  REQUIRE(job.pass(job.now + 2s).ends_with("a host store of round 8\n"));
}
