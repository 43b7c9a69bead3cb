#include "rendezvous_job.hpp"

using namespace torchup;
using namespace torchup::rendezvous_job;

TEST_CASE("a fixed job forms when its last node joins", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2}};
  REQUIRE(job.join("b", 3).empty());
  REQUIRE(job.join("a", 2) == "a host store of round 0\n");
  SECTION("only the host of the store may say that it is ready, and only of this round") {
    REQUIRE(job.say("b", StoreReady{Round{0}, Port{1}}).empty());
    REQUIRE(job.say("a", StoreReady{Round{1}, Port{1}}).empty());
  }
  REQUIRE(job.say("a", StoreReady{Round{0}, Port{4000}}) ==
          "a round 0: node 0 of 2, ranks from 0 of 5, at 10.0.0.1:4000, restarts 0\n"
          "b round 0: node 1 of 2, ranks from 2 of 5, at 10.0.0.1:4000, restarts 0\n");
  REQUIRE(job.say("a", WorkersSucceeded{Round{0}}).empty());
  const std::string ends = job.say("b", WorkersSucceeded{Round{0}});
  REQUIRE(ends.find("a end 0: all workers exited 0\n") != std::string::npos);
  REQUIRE(ends.find("b end 0: all workers exited 0\n") != std::string::npos);
}

TEST_CASE("an elastic job forms at max at once, at min after the last call", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 3, .last_call = 5s, .lease = 10s}};
  job.join("a");
  job.now = t0 + 1s;
  REQUIRE(job.join("b").empty());
  SECTION("max") { REQUIRE(job.join("c") == "a host store of round 0\n"); }
  SECTION("not a moment earlier") {
    REQUIRE(job.pass(t0 + 6s - 1ns).find("host store") == std::string::npos);
    REQUIRE(job.at(t0 + 6s) == "a host store of round 0\n");
  }
  SECTION("the last call starts anew when a node is gone in between") {
    job.now = t0 + 3s;
    job.gone("b");
    job.now = t0 + 4s;
    job.join("c");
    REQUIRE(job.pass(t0 + 9s - 1ns).find("host store") == std::string::npos);
    REQUIRE(job.at(t0 + 9s) == "a host store of round 0\n");
  }
}

TEST_CASE("a job whose hosts are known waits for nobody else", "[unit][rendezvous]") {
  Job job{{.min_nodes = 1, .max_nodes = 9, .hostlist = "a,b"}};
  REQUIRE(job.join("a").empty());
  REQUIRE(job.join("b") == "a host store of round 0\n");
}

TEST_CASE("too few nodes within the join timeout end with 66 and the roster", "[unit][rendezvous]") {
  Job job{{.min_nodes = 3, .max_nodes = 3, .join_timeout = 20s, .hostlist = "a,b,c"}};
  job.join("a");
  job.join("b");
  const std::string before = job.pass(t0 + 20s - 1ns);
  REQUIRE(before.find("end") == std::string::npos);
  REQUIRE(before.find("a waiting: 2 of 3 nodes: a, b; not heard of: c\n") != std::string::npos);
  const std::string ends = job.at(t0 + 20s);
  REQUIRE(ends.find("a end 66: too few nodes within the join timeout of 20 s: 2 of 3 nodes: a, b; not heard of: c\n") !=
          std::string::npos);
}

TEST_CASE("a worker failure stops all and costs one restart of the whole job", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .max_restarts = 1});
  REQUIRE(job.fail("b", 0, 3).empty());
  job.now += 20ms;
  const std::string stops = job.step(Tick{});
  REQUIRE(stops ==
          "a stop round 0 (failure): rank 3 on b exited with 3; restart 1 of 1\n"
          "b stop round 0 (failure): rank 3 on b exited with 3; restart 1 of 1\n");
  REQUIRE(job.join("a").empty());
  REQUIRE(job.join("b") == "a host store of round 1\n");
  REQUIRE(job.say("a", StoreReady{Round{1}, Port{4001}}) ==
          "a round 1: node 0 of 2, ranks from 0 of 4, at 10.0.0.1:4001, restarts 1\n"
          "b round 1: node 1 of 2, ranks from 2 of 4, at 10.0.0.1:4001, restarts 1\n");
  SECTION("the second one is the verdict for all, with the root cause first") {
    job.fail("a", 1, 0, -9);
    job.fail("b", 1, 2);
    job.now += 20ms;
    const std::string ends = job.step(Tick{});
    REQUIRE(ends.find("a end 1: rank 0 on a was ended by signal 9; all 1 restarts are used up\n") != std::string::npos);
    REQUIRE(ends.find("b end 1: rank 0 on a was ended by signal 9; all 1 restarts are used up\n") != std::string::npos);
    REQUIRE(job.rendezvous.verdict()->failures.size() == 2);
    REQUIRE(job.rendezvous.verdict()->failures.front().host == "a");
  }
  SECTION("a failure that is told late, of a round that is over, is nothing") {
    REQUIRE(job.fail("b", 0, 3).empty());
    REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
  }
}

TEST_CASE("one node decides without delay", "[unit][rendezvous]") {
  Job job = running_job(1, {.max_restarts = 1});
  REQUIRE(job.fail("a", 0, 0) == "a stop round 0 (failure): rank 0 on a exited with 3; restart 1 of 1\n");
}

TEST_CASE("what another attempt cannot mend uses no restart", "[unit][rendezvous]") {
  Job job = running_job(1, {.max_restarts = 5});
  WorkersFailed failed{.round = Round{0}, .may_restart = false};
  failed.failures.push_back({.rank = Rank{0}, .exit_code = 127, .host = "a"});
  REQUIRE(job.say("a", failed) == "a end 1: rank 0 on a exited with 127; another attempt cannot do better\n");
}

TEST_CASE("a lost node is a membership change and costs no restart", "[unit][rendezvous]") {
  Job job = running_job(3, {.min_nodes = 2, .max_nodes = 3, .max_restarts = 1, .last_call = 1s});
  SECTION("its end of file stops the others at once, and the survivors go on without a last call") {
    const std::string stops = job.gone("b");
    REQUIRE(stops == "a stop round 0 (membership): node b has ended\nc stop round 0 (membership): node b has ended\n");
    job.join("c");
    REQUIRE(job.join("a") == "a host store of round 1\n");
    REQUIRE(job.rendezvous.restart_count() == 0);
  }
  SECTION("failures that come in before the end of file were collateral") {
    job.fail("a", 0, 0);
    job.now += 5ms;
    REQUIRE(job.gone("b") ==
            "a stop round 0 (membership): node b has ended\nc stop round 0 (membership): node b has ended\n");
    REQUIRE(job.rendezvous.restart_count() == 0);
  }
  SECTION("a failure while a node is silent waits for the lease to tell") {
    REQUIRE(job.pass(job.now + 4s, "b").empty());
    job.fail("a", 0, 0);
    const std::string decided = job.pass(job.now + 6s, "b");
    REQUIRE(decided.find("a stop round 0 (membership): node b was silent for 10 s") != std::string::npos);
    REQUIRE(decided.find("b stop round 0 (fenced)") != std::string::npos);
    REQUIRE(job.rendezvous.restart_count() == 0);
  }
  SECTION("and counts when the silent node speaks again") {
    job.pass(job.now + 4s, "b");
    job.fail("a", 0, 0);
    REQUIRE(job.pass(job.now + 1s, "b").empty());
    REQUIRE(job.alive("b").find("(failure)") != std::string::npos);
    REQUIRE(job.rendezvous.restart_count() == 1);
  }
}

TEST_CASE("a node lost before the failure that was counted gives the restart back", "[unit][rendezvous]") {
  Job job = running_job(3, {.min_nodes = 2, .max_nodes = 3, .max_restarts = 1, .last_call = 1s});
  const TimePoint last_word = job.now;
  job.pass(last_word + 2s, "b");
  job.fail("a", 0, 0);
  job.pass(job.now + 20ms, "b");
  REQUIRE(job.rendezvous.restart_count() == 1);
  job.join("a");
  job.join("c");
  job.pass(last_word + 10s, "b");
  REQUIRE(job.rendezvous.restart_count() == 0);
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::hosting);
}

TEST_CASE("a node whose end of file comes after the failure that was counted has not caused it", "[unit][rendezvous]") {
  Job job = running_job(3, {.min_nodes = 2, .max_nodes = 3, .max_restarts = 1, .last_call = 1s});
  job.now += 500ms;  // nobody's next sign of life was due
  job.fail("a", 0, 0);
  job.pass(job.now + 20ms, "b");
  REQUIRE(job.rendezvous.restart_count() == 1);
  job.gone("b");
  REQUIRE(job.rendezvous.restart_count() == 1);
}

TEST_CASE("a spare that was lost before a failure has not caused it", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .max_restarts = 1, .last_call = 1s});
  job.join("c");
  const TimePoint last_word = job.now;
  job.pass(last_word + 2s, "c");
  job.fail("a", 0, 0);
  job.pass(job.now + 20ms, "c");
  REQUIRE(job.rendezvous.restart_count() == 1);
  job.join("a");
  job.pass(last_word + 10s, "c");
  REQUIRE(job.rendezvous.restart_count() == 1);
}

TEST_CASE("fewer than min nodes wait for a replacement", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .join_timeout = 60s});
  job.gone("b");
  REQUIRE(job.join("a").empty());
  job.pass(job.now + 30s);
  REQUIRE(job.join("c") == "a host store of round 1\n");
}

TEST_CASE("newcomers join a running job by one membership change", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 4, .last_call = 1s});
  REQUIRE(job.join("c").empty());
  job.now += 100ms;
  REQUIRE(job.join("d").empty());
  job.now += 100ms;
  REQUIRE(job.step(Tick{}) ==
          "a stop round 0 (membership): joining: c, d\nb stop round 0 (membership): joining: c, d\n");
  job.join("a");
  REQUIRE(job.join("b") == "a host store of round 1\n");
  REQUIRE(job.say("a", StoreReady{Round{1}, Port{1}}).find("d round 1: node 3 of 4, ranks from 6 of 8") !=
          std::string::npos);
  SECTION("one more is a spare: nobody is disturbed until a place is free") {
    REQUIRE(job.join("e").empty());
    REQUIRE(job.pass(job.now + 30s).empty());
    job.gone("b");
    job.join("a");
    job.join("c");
    REQUIRE(job.join("d") == "a host store of round 2\n");
    REQUIRE(job.say("a", StoreReady{Round{2}, Port{1}}).find("e round 2: node 3 of 4") != std::string::npos);
  }
  SECTION("a round that begins to end takes nobody in") {
    job.gone("d");
    for (const char* name : {"a", "b", "c"}) job.join(name);
    job.say("a", StoreReady{Round{2}, Port{1}});
    job.say("a", WorkersSucceeded{Round{2}});
    job.join("f");
    REQUIRE(job.pass(job.now + 5s).empty());
  }
}

TEST_CASE("rounds are a multiple of what was asked for", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 5, .nodes_multiple_of = 2, .last_call = 1s}};
  for (const char* name : {"a", "b", "c"}) job.join(name);
  REQUIRE(job.pass(t0 + 1s).find("a host store of round 0\n") != std::string::npos);
  REQUIRE(job.say("a", StoreReady{Round{0}, Port{1}}).find("b round 0: node 1 of 2") != std::string::npos);
  REQUIRE(job.pass(job.now + 5s).empty());  // c alone makes no larger round
  job.join("d");
  REQUIRE(job.pass(job.now + 1s).find("joining: c, d") != std::string::npos);
}

TEST_CASE("the address of group rank 0 is one that others can reach", "[unit][rendezvous]") {
  const auto published = [](const std::string& observed, std::vector<std::string> addresses, bool demanded,
                            const std::string& other = "10.0.0.7") {
    Job job{{.min_nodes = 2, .max_nodes = 2}};
    job.connect("a", observed);
    job.connect("b", other);
    Join join = job.join_of("a");
    join.addresses = std::move(addresses);
    join.address_demanded = demanded;
    job.say("a", join);
    job.join("b");
    const std::string placed = job.say("a", StoreReady{Round{0}, Port{5}});
    const auto from = placed.find(" at ") + 4;
    return placed.substr(from, placed.find(":5,") - from);
  };
  REQUIRE(published("10.0.0.3", {"192.168.0.3", "10.0.0.3"}, false) == "10.0.0.3");
  REQUIRE(published("10.0.0.3", {"192.168.0.3"}, false) == "192.168.0.3");  // behind a translator of addresses
  REQUIRE(published("10.0.0.3", {"addr-a"}, true) == "addr-a");
  REQUIRE(published("127.0.0.1", {"10.0.0.254"}, false) == "10.0.0.254");  // it shares our machine
  REQUIRE(published("127.0.0.1", {"10.0.0.254"}, false, "127.0.0.1") == "127.0.0.1");
  REQUIRE(published("fd00::3", {"fd00::3"}, false) == "fd00::3");
}

TEST_CASE("where group rank 0 is beside the coordinator, others reach it where a node of the round reached us",
          "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2}};
  job.connect("a", "127.0.0.1");
  job.join("b");  // by 10.0.0.254
  const bool comes_back = GENERATE(false, true);
  if (comes_back) {
    job.gone("b", false);
    job.resume("b", Resume::Stage::ready);
  }
  job.step(Connected{Peer{99}, "192.168.5.9", "192.168.5.1"});  // it says hello, and no more
  job.join("a");
  REQUIRE(job.say("a", StoreReady{Round{0}, Port{5}}).find(" at 10.0.0.254:5,") != std::string::npos);
}

TEST_CASE("no round is formed with a silent member", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .lease = 10s}};
  job.join("a");
  job.pass(t0 + 4s, "a");
  REQUIRE(job.join("b").find("host store") == std::string::npos);
  SECTION("it forms when that one speaks") { REQUIRE(job.alive("a") == "a host store of round 0\n"); }
  SECTION("or without it, when it is expelled and another is there") {
    job.join("c");
    REQUIRE(job.pass(t0 + 10s, "a").find("b host store of round 0\n") != std::string::npos);
  }
}

TEST_CASE("a running round does not stop for a newcomer that is silent", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 3, .lease = 10s});
  job.join("c");
  job.gone("c", false);
  REQUIRE(job.pass(job.now + 9s).empty());
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
  job.resume("c", Resume::Stage::ready);
  REQUIRE(job.pass(job.now + 1s).find("joining: c") != std::string::npos);
}

TEST_CASE("a failure that is told again is one failure", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .max_restarts = 0, .lease = 10s});
  job.gone("b", false);
  WorkersFailed failed{.round = Round{0}};
  failed.failures.push_back({.rank = Rank{0}, .exit_code = 3, .host = "a"});
  REQUIRE(job.say("a", failed).empty());
  job.connect("a");
  Placement place{.round = Round{0}, .group_world_size = 2, .world_size = 4, .role_world_size = 4};
  job.step(Resumed{job.peer_of.at("a"),
                   {.join = job.join_of("a"), .stage = Resume::Stage::failed, .placement = place, .failed = failed}});
  job.resume("b", Resume::Stage::running,
             Placement{.round = Round{0},
                       .group_rank = GroupRank{1},
                       .group_world_size = 2,
                       .first_rank = Rank{2},
                       .world_size = 4,
                       .first_role_rank = Rank{2},
                       .role_world_size = 4});
  job.pass(job.now + 1s);
  REQUIRE(job.rendezvous.verdict());
  REQUIRE(job.rendezvous.verdict()->failures.size() == 1);
}

TEST_CASE("a verdict holds so many failures, the first ones", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2});
  for (const char* name : {"a", "b"}) {
    WorkersFailed failed{.round = Round{0}};
    for (std::size_t i = 0; i < failures_kept_max; ++i) {
      const int rank = static_cast<int>(i) + (*name == 'b' ? static_cast<int>(failures_kept_max) : 0);
      failed.failures.push_back({.rank = Rank{rank}, .exit_code = 3, .host = name});
    }
    job.say(name, failed);
  }
  job.pass(job.now + 100ms);
  REQUIRE(job.rendezvous.verdict());
  REQUIRE(job.rendezvous.verdict()->failures.size() == failures_kept_max);
  REQUIRE(job.rendezvous.verdict()->failures.back().host == "a");
}

TEST_CASE("a node that does not open the worker store within a minute loses its place", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2}};
  job.join("a");
  REQUIRE(job.join("b") == "a host store of round 0\n");
  REQUIRE(job.pass(t0 + 60s - 1ms).empty());
  REQUIRE(job.pass(t0 + 60s).starts_with("a stop round 0 (fenced): did not open the worker store in time\n"));
  REQUIRE(job.join("c") == "b host store of round 1\n");
}

TEST_CASE("who has not stopped its workers within the join timeout is not waited for", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 1, .max_nodes = 2, .max_restarts = 1, .join_timeout = 40s});
  job.fail("b", 0, 2);
  const TimePoint stopped = job.now + 20ms;
  REQUIRE(job.pass(stopped).find("b stop round 0 (failure)") != std::string::npos);
  REQUIRE(job.join("a").empty());
  REQUIRE(job.pass(stopped + 40s - 1ms).find("host store") == std::string::npos);
  const std::string told = job.pass(stopped + 40s);
  REQUIRE(told.find("b stop round 0 (fenced): did not stop its workers within the join timeout\n") !=
          std::string::npos);
  REQUIRE(told.find("a host store of round 1\n") != std::string::npos);
}
