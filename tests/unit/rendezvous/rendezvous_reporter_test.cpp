// Who of a job's nodes has its report.
#include "rendezvous/core/link/message_bytes.hpp"
#include "rendezvous/core/text/names.hpp"
#include "tests/unit/rendezvous/rendezvous_job.hpp"

using namespace torchup;
using namespace torchup::rendezvous_job;

namespace {

const Leave interrupted{.exit_code = 130, .reason = "interrupted"};
const Leave terminated{.ends_job = false, .exit_code = 143, .reason = "terminated"};

std::string reporter(const Job& job) {
  REQUIRE(job.rendezvous.verdict());
  return job.rendezvous.verdict()->reporter;
}

/// What `name`, which leaves, is told of that.
std::string reporter_for_leaver(Job& job, const std::string& name) {
  for (const RendezvousAction& action : job.rendezvous.step(Said{job.peer_of.at(name), terminated}, job.now)) {
    const auto* tell = std::get_if<Tell>(&action);
    const auto* end = tell && tell->peer == job.peer_of.at(name) ? std::get_if<End>(&tell->message) : nullptr;
    if (end) return end->verdict.reporter;
  }
  return "nobody was told";
}

Leave failed_on(const std::string& host) {
  Leave word{.exit_code = 1, .reason = "a worker failed"};
  word.failures.push_back({.exit_code = 3, .host = host});
  return word;
}

}  // namespace

TEST_CASE("the report is the first node's of the last round", "[unit][rendezvous]") {
  Job job = running_job(3, {.min_nodes = 1, .max_nodes = 3, .last_call = 1s});
  SECTION("of the only one") {
    job.say("b", interrupted);
    REQUIRE(reporter(job) == "a");
  }
  SECTION("of a later one") {
    job.gone("a");
    job.join("b");
    job.join("c");
    REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::hosting);
    job.say("b", StoreReady{Round{1}, Port{4000}});
    job.join("a");  // stands by
    job.say("c", interrupted);
    REQUIRE(reporter(job) == "b");
  }
  SECTION("of those that are left of it") {
    job.gone("a");
    job.say("c", interrupted);
    REQUIRE(reporter(job) == "b");
  }
}

TEST_CASE("the report of a failure is its host's, where that is still there", "[unit][rendezvous]") {
  Job job = running_job(3, {.min_nodes = 1, .max_nodes = 3, .last_call = 1s});
  SECTION("it is") {
    job.say("b", failed_on("c"));
    REQUIRE(reporter(job) == "c");
  }
  SECTION("it is not") {
    job.gone("c");
    job.say("b", failed_on("c"));
    REQUIRE(reporter(job) == "a");
  }
}

TEST_CASE("the report is that of a node that can hear that it has it", "[unit][rendezvous]") {
  Job job = running_job(3, {.min_nodes = 1, .max_nodes = 3, .last_call = 1s, .lease = 10s});
  const auto silent_but = [&](const std::string& names) {
    job.now += 4s;
    for (const char name : names) job.alive(std::string(1, name));
  };
  SECTION("the second, where the first one is silent") {
    silent_but("bc");
    job.say("c", interrupted);
    REQUIRE(reporter(job) == "b");
  }
  SECTION("or cut off") {
    job.gone("a", false);
    job.say("c", interrupted);
    REQUIRE(reporter(job) == "b");
  }
  SECTION("the first one, where the failure's is silent") {
    silent_but("ab");
    job.say("b", failed_on("c"));
    REQUIRE(reporter(job) == "a");
  }
  SECTION("or cut off") {
    job.gone("c", false);
    job.say("b", failed_on("c"));
    REQUIRE(reporter(job) == "a");
  }
  SECTION("a spare's, where nobody of the round can") {
    job.join("d");
    silent_but("d");
    job.say("d", interrupted);
    REQUIRE(reporter(job) == "d");
  }
  SECTION("and where nobody can, it is the one's that would have it") {
    silent_but("");
    const bool fails = GENERATE(true, false);
    job.step(Foretold{3, verdict_of(fails ? failed_on("c") : interrupted)});
    REQUIRE(reporter(job) == (fails ? "c" : "a"));
  }
}

TEST_CASE("a node that leaves others alone has no report, and the last one has it", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 1, .max_nodes = 2, .last_call = 1s});
  REQUIRE(reporter_for_leaver(job, "a").empty());
  REQUIRE(reporter_for_leaver(job, "b") == "b");
}

TEST_CASE("the last node has no report where others come in its place", "[unit][rendezvous]") {
  Job job = running_job(1, {.min_nodes = 1, .max_nodes = 2});
  const bool others_come = GENERATE(true, false);
  job.step(Foretold{1, {}, others_come});
  REQUIRE(reporter_for_leaver(job, "a") == (others_come ? "" : "a"));
}

TEST_CASE("before the first round the report is the first node's by index, where they have one", "[unit][rendezvous]") {
  const bool indexed = GENERATE(true, false);
  Job job{{.min_nodes = 3, .max_nodes = 3}};
  for (const auto& [name, index] : {std::pair{"a", 2}, std::pair{"b", 1}}) {
    job.connect(name);
    Join join = job.join_of(name);
    if (indexed) join.group_rank = GroupRank{index};
    job.say(name, join);
  }
  job.say("a", interrupted);
  REQUIRE(reporter(job) == (indexed ? "b" : ""));
}

TEST_CASE("a verdict is shortened for who has its report too", "[unit][rendezvous]") {
  const Verdict verdict{
      .exit_code = 143, .reason = std::string(1000, 'r'), .reporter = std::string(name_bytes_max, 'h')};
  const Verdict less = shortened(verdict, 400);
  REQUIRE(held_bytes(less) <= 400);
  REQUIRE(less.reporter == verdict.reporter);
  REQUIRE_FALSE(less.reason.empty());
}
