// Nodes on which no worker should run now.
#include <algorithm>

#include "tests/unit/rendezvous/rendezvous_job.hpp"

using namespace torchup;
using namespace torchup::rendezvous_job;

namespace {

const std::string lost = "GPU 3 is lost (Xid 79)";

std::string join_unfit(Job& job, const std::string& name, const std::string& why = lost) {
  if (!job.peer_of.contains(name)) job.connect(name);
  Join join = job.join_of(name);
  join.unfit = why;
  return job.say(name, join);
}

Join unfit_join(const Job& job, const std::string& name) {
  Join join = job.join_of(name);
  join.unfit = lost;
  return join;
}

}  // namespace

TEST_CASE("an unfit node is no candidate, and the roster says why", "[unit][unfit]") {
  Job job{{.min_nodes = 1, .max_nodes = 3, .last_call = 10s}};
  REQUIRE(join_unfit(job, "a").empty());
  job.join("b");
  REQUIRE(job.rendezvous.roster(job.now) == "1 of 1 to 3 nodes: b; a: unfit: " + lost);
  const std::string lines = job.pass(t0 + 10s);
  REQUIRE(lines.find("b host store of round 0") != std::string::npos);
  REQUIRE(lines.find("a host store") == std::string::npos);
  REQUIRE(job.say("b", StoreReady{Round{0}, Port{4000}}) ==
          "b round 0: node 0 of 1, ranks from 0 of 2, at 10.0.0.1:4000, restarts 0\n");
  const JobView view = job.rendezvous.view(job.now);
  const auto unfit = std::ranges::find(view.nodes, "a", &JobView::Node::host);
  REQUIRE(unfit->state == "unfit");
  REQUIRE(unfit->reason == lost);

  SECTION("beside a running round it stops nobody, however often it joins") {
    REQUIRE(job.pass(t0 + 1min).empty());
    REQUIRE(join_unfit(job, "a").empty());
    REQUIRE(join_unfit(job, "a", "GPU 3 is still lost").empty());
    REQUIRE(job.pass(t0 + 2min).empty());
    REQUIRE(job.rendezvous.restart_count() == 0);
  }
  SECTION("when it is fit again it takes part, and no restart is counted") {
    REQUIRE(job.join("a").empty());
    REQUIRE(job.pass(job.now + 300ms) == "b stop round 0 (membership): joining: a\n");
    REQUIRE(job.join("b") == "a host store of round 1\n");
    REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::hosting);
    REQUIRE(job.rendezvous.restart_count() == 0);
  }
}

TEST_CASE("a spare that is fit again while its connection is down takes part", "[unit][unfit]") {
  Job job{{.min_nodes = 1, .max_nodes = 2, .last_call = 10s}};
  join_unfit(job, "a");
  job.join("b");
  REQUIRE(job.pass(t0 + 10s).find("b host store of round 0") != std::string::npos);
  const bool runs = GENERATE(true, false);
  if (runs) job.say("b", StoreReady{Round{0}, Port{4000}});
  REQUIRE(job.gone("a", false).empty());
  REQUIRE(job.resume("a", Resume::Stage::ready).empty());
  REQUIRE(job.rendezvous.members().unfit() == 0);
  if (!runs) job.say("b", StoreReady{Round{0}, Port{4000}});
  REQUIRE(job.pass(job.now + 300ms) == "b stop round 0 (membership): joining: a\n");
}

TEST_CASE("a node that its comparison condemns gives its place up though its Join was lost", "[unit][unfit]") {
  Job job = running_job(2, {.min_nodes = 1, .max_nodes = 2, .last_call = 1s});
  REQUIRE(job.gone("b", false).empty());
  job.connect("b");
  Resume resume{.join = unfit_join(job, "b")};
  resume.join.former = Placement{.round = Round{0}};
  REQUIRE(job.step(Resumed{job.peer_of.at("b"), resume}) ==
          "a stop round 0 (membership): node b starts anew\nb stop round 0 (membership): node b starts anew\n");
  REQUIRE(job.rendezvous.members().unfit() == 1);
  REQUIRE(job.join("a") == "a host store of round 1\n");
  REQUIRE(job.say("a", StoreReady{Round{1}, Port{4001}}).starts_with("a round 1: node 0 of 1"));
}

TEST_CASE("where those that are fit are too few and all have spoken the job ends with 65", "[unit][unfit]") {
  Job job{{.min_nodes = 2, .max_nodes = 2}};
  REQUIRE(join_unfit(job, "a").empty());
  REQUIRE(job.pass(t0 + 5s).find("end") == std::string::npos);  // the other one is still to come
  const std::string end = "end 65: too few nodes are fit: 1 of 2 nodes: b; a: unfit: " + lost + "\n";
  const std::string lines = job.join("b");
  REQUIRE(lines.find("a " + end) != std::string::npos);
  REQUIRE(lines.find("b " + end) != std::string::npos);
}

TEST_CASE("a spare takes the place of an unfit node", "[unit][unfit]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .hostlist = "a,b,c"}};
  join_unfit(job, "a");
  REQUIRE(job.join("b").empty());
  REQUIRE(job.join("c").find("b host store of round 0") != std::string::npos);
}

TEST_CASE("of those that may still come the job waits until its join timeout, then it is 65", "[unit][unfit]") {
  Job job{{.min_nodes = 2, .max_nodes = 4, .join_timeout = 60s}};
  join_unfit(job, "a");
  job.join("b");
  REQUIRE(job.pass(t0 + 60s - 1ms).find("end") == std::string::npos);
  REQUIRE(job.pass(t0 + 60s).find("b end 65: too few nodes are fit: ") != std::string::npos);

  Job alone{{.min_nodes = 2, .max_nodes = 4, .join_timeout = 60s}};  // fit, it would be too few as well
  join_unfit(alone, "a");
  REQUIRE(alone.pass(t0 + 60s).find("a end 66: too few nodes within the join timeout") != std::string::npos);
}

TEST_CASE("without a node that it needs a job does not begin, and ends with 66 when all have heard of it",
          "[unit][unfit]") {
  const auto join_needed = [](Job& job, const std::string& name) {
    if (!job.peer_of.contains(name)) job.connect(name);
    Join join = unfit_join(job, name);
    join.needed = true;
    return job.say(name, join);
  };
  const std::string end = "end 66: a node that the job needs is unfit: ";
  SECTION("which it is at once where it comes last") {
    Job job{{.min_nodes = 2, .max_nodes = 2}};
    job.join("a");
    const std::string lines = join_needed(job, "b");
    REQUIRE(lines.find("a " + end + "1 of 2 nodes: a; b: unfit: " + lost + "\n") != std::string::npos);
    REQUIRE(lines.find("b " + end) != std::string::npos);
    REQUIRE(lines.find("host store") == std::string::npos);
  }
  SECTION("or with what that node says") {
    Job job{{.min_nodes = 2, .max_nodes = 2}};
    job.join("a");
    job.connect("b");
    Join join = unfit_join(job, "b");
    join.needed = true;
    join.needed_code = 2;
    REQUIRE(job.say("b", join).find("a end 2: a node that the job needs is unfit: ") != std::string::npos);
  }
  SECTION("of several with what the first of them says, whatever they are called") {
    Job job{{.min_nodes = 8, .max_nodes = 8}};
    int code = 2;
    std::string lines;
    for (const char* name : {"f", "b", "h", "d", "a", "g", "c", "e"}) {
      job.connect(name);
      Join join = unfit_join(job, name);
      join.needed = true;
      join.needed_code = code++;
      lines = job.say(name, join);
    }
    REQUIRE(lines.find("f end 2: a node that the job needs is unfit: ") != std::string::npos);
  }
  SECTION("else with the last one, though there are enough without it") {
    Job job{{.min_nodes = 1, .max_nodes = 2, .last_call = 1s}};
    join_needed(job, "b");
    REQUIRE(job.pass(t0 + 10s).find("host store") == std::string::npos);
    REQUIRE(job.join("a").find("a " + end) != std::string::npos);
  }
  SECTION("of expected nodes with the last of them, though there are spares") {
    Job job{{.min_nodes = 2, .max_nodes = 2, .hostlist = "a,b,c"}};
    join_needed(job, "c");
    REQUIRE(job.join("a").empty());
    REQUIRE(job.join("b").find("b " + end) != std::string::npos);
  }
  SECTION("or when its time to come together is over") {
    Job job{{.min_nodes = 1, .max_nodes = 3, .join_timeout = 60s, .last_call = 1s}};
    join_needed(job, "b");
    job.join("a");
    REQUIRE(job.pass(t0 + 60s - 1ms).find("end") == std::string::npos);
    REQUIRE(job.pass(t0 + 60s).find("a " + end) != std::string::npos);
  }
  SECTION("but one that has begun goes on: it is a spare that is none") {
    Job job = running_job(2, {.min_nodes = 1, .max_nodes = 2});
    REQUIRE(join_needed(job, "c").empty());
    job.gone("b");
    REQUIRE(job.join("a") == "a host store of round 1\n");
  }
}

TEST_CASE("a node that is needed and finds that out too late leaves alone", "[unit][unfit]") {
  Job job = running_job(1, {.min_nodes = 1, .max_nodes = 2, .last_call = 1s});
  const bool hosts = GENERATE(false, true);
  const int code = GENERATE(2, 130);
  job.connect("b", "10.0.0.2", hosts);
  Join join = unfit_join(job, "b");
  join.needed = true;
  join.needed_code = 2;
  job.say("b", join);
  REQUIRE(job.say("b", Leave{.exit_code = code, .reason = lost}).find(fmt::format("b end {}: ", code)) !=
          std::string::npos);
  // Others end with it where it hosts the coordinator, or its user has asked for that.
  REQUIRE((job.rendezvous.phase() == Rendezvous::Phase::running) == (!hosts && code == 2));
}

TEST_CASE("that a node is needed outlives the coordinator", "[unit][unfit]") {
  Job job{{.min_nodes = 2, .max_nodes = 3}};
  job.join("a");
  job.connect("b");
  Join join = unfit_join(job, "b");
  join.needed = true;
  job.say("b", join);
  job.restart();
  REQUIRE(job.rendezvous.members().missed() == 1);
}

TEST_CASE("a node that is unfit after a failure leaves its place to the others", "[unit][unfit]") {
  Job job = running_job(3, {.min_nodes = 2, .max_nodes = 3, .max_restarts = 2});
  job.fail("c", 0, 4);
  REQUIRE(job.pass(job.now + 20ms).find("c stop round 0 (failure)") != std::string::npos);
  job.join("a");
  join_unfit(job, "c");
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::gathering);  // b is still to come
  REQUIRE(job.join("b").find("a host store of round 1") != std::string::npos);
  REQUIRE(job.say("a", StoreReady{Round{1}, Port{4001}}).find("b round 1: node 1 of 2") != std::string::npos);
  REQUIRE(job.rendezvous.restart_count() == 1);
}

TEST_CASE("whether a node is fit outlives its connection and the coordinator", "[unit][unfit]") {
  Job job{{.min_nodes = 2, .max_nodes = 3}};
  job.join("a");
  job.join("b");
  job.gone("b", false);
  job.connect("b");
  SECTION("what was lost with the connection is said again") {
    job.step(Resumed{job.peer_of.at("b"), {.join = unfit_join(job, "b")}});
    REQUIRE(job.rendezvous.roster(job.now) == "1 of 2 to 3 nodes: a; b: unfit: " + lost);
    REQUIRE(job.rendezvous.members().unfit() == 1);
    job.join("b");
    REQUIRE(job.rendezvous.members().unfit() == 0);
    REQUIRE(job.rendezvous.members().ready() == 2);
  }
  SECTION("a snapshot has it") {
    join_unfit(job, "b");
    job.restart();
    REQUIRE(job.rendezvous.members().unfit() == 1);
    REQUIRE(job.rendezvous.members().ready() == 1);
  }
}
