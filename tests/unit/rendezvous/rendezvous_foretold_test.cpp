#include "rendezvous_job.hpp"

using namespace torchup;
using namespace torchup::rendezvous_job;

TEST_CASE("the last call waits for no more agents than are started", "[unit][rendezvous]") {
  Job job{{.min_nodes = 1, .max_nodes = 4, .last_call = 30s}};
  REQUIRE(job.step(Foretold{3, {}}).empty());
  job.join("a");
  REQUIRE(job.join("b").find("host store") == std::string::npos);
  SECTION("once all of them are there") { REQUIRE(job.join("c") == "a host store of round 0\n"); }
  SECTION("once the others cannot come") { REQUIRE(job.step(Foretold{2, {}}) == "a host store of round 0\n"); }
  SECTION("but for too few it does") {
    Job larger{{.min_nodes = 2, .max_nodes = 4, .last_call = 30s}};
    larger.step(Foretold{1, {}});
    REQUIRE(larger.join("a").find("host store") == std::string::npos);
  }
}

TEST_CASE("whoever starts the agents may end the job", "[unit][rendezvous]") {
  const Foretold over{0, Verdict{.exit_code = 67, .reason = "host c: ssh ended with 255"}};
  SECTION("while it gathers") {
    Job job{{.min_nodes = 3, .max_nodes = 3}};
    job.join("a");
    REQUIRE(job.step(over) == "a end 67: host c: ssh ended with 255\n");
    SECTION("also for those that join only now") {
      REQUIRE(job.join("b") == "b end 67: host c: ssh ended with 255\n");
      REQUIRE(job.rendezvous.verdict()->exit_code == 67);
    }
  }
  SECTION("while it runs") {
    Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2});
    const std::string lines = job.step(over);
    REQUIRE(lines.find("a end 67: ") != std::string::npos);
    REQUIRE(lines.find("b end 67: ") != std::string::npos);
  }
  SECTION("before anybody has joined") {
    Job job{{.min_nodes = 1, .max_nodes = 1}};
    REQUIRE(job.step(over).empty());
    REQUIRE(job.join("a") == "a end 67: host c: ssh ended with 255\n");
  }
  SECTION("but not after its end") {
    Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2});
    job.say("a", Leave{.ends_job = true, .exit_code = 130, .reason = "interrupted"});
    REQUIRE(job.step(over).empty());
    REQUIRE(job.rendezvous.verdict()->exit_code == 130);
  }
}

TEST_CASE("where others come in its place a node that leaves ends nothing", "[unit][rendezvous]") {
  Job job = running_job(1, {.min_nodes = 1, .max_nodes = 4});
  const Leave leave{.ends_job = false, .exit_code = 143, .reason = "terminated"};
  job.step(Foretold{1, {}, true});
  SECTION("though nobody is left") {
    REQUIRE(job.say("a", leave) == "a end 143: terminated\n");
    job.gone("a");
    REQUIRE_FALSE(job.rendezvous.verdict());
    job.join("b");
    REQUIRE(job.pass(job.now + 2s).find("b host store of round 1\n") != std::string::npos);
  }
  SECTION("until nobody comes any more") {
    job.step(Foretold{1, {}, false});
    job.say("a", leave);
    REQUIRE(job.rendezvous.verdict()->exit_code == 143);
  }
}
