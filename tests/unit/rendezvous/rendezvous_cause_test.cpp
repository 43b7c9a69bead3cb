// Which failure a job ends with, where nodes tell of several.
#include "rendezvous_job.hpp"

using namespace torchup;
using namespace torchup::rendezvous_job;

TEST_CASE("a job ends with the cause that another node tells after its consequences", "[unit][rendezvous][cause]") {
  const int max_restarts = GENERATE(0, 1);
  Job job = running_job(3, {.min_nodes = 3, .max_nodes = 3, .max_restarts = max_restarts});
  const auto dies_of_others = [&](const char* name, int rank) {
    WorkersFailed failed{.round = Round{0}};
    failed.failures.push_back({.rank = Rank{rank}, .exit_code = 1, .host = name, .consequence = true});
    return job.say(name, failed);
  };
  const TimePoint failed_at = job.now;
  const Duration patience = RendezvousSettings{}.cause_patience;
  REQUIRE(dies_of_others("a", 0).empty());
  if (max_restarts == 1) {  // another attempt waits for no words
    REQUIRE(job.pass(failed_at + 20ms).find("stop round 0 (failure)") != std::string::npos);
    return;
  }
  REQUIRE(job.pass(failed_at + 20ms).empty());
  REQUIRE(job.rendezvous.deadline() > job.now);  // nobody waits by looking again and again
  REQUIRE(job.pass(failed_at + patience - 1ms).empty());
  SECTION("which ends the waiting") {
    REQUIRE(job.fail("b", 0, 2).find("end 1: rank 2 on b exited with 3\n") != std::string::npos);
    REQUIRE(job.rendezvous.verdict()->failures.size() == 2);
    REQUIRE(job.rendezvous.verdict()->failures.front().host == "b");
  }
  SECTION("but waits no longer than that") {
    REQUIRE(job.pass(failed_at + patience).find("end 1: rank 0 on a exited with 1\n") != std::string::npos);
  }
  SECTION("nor when nobody is left who could tell it") {
    REQUIRE(dies_of_others("b", 2).empty());
    REQUIRE(dies_of_others("c", 4).find("end 1: rank 0 on a exited with 1\n") != std::string::npos);
  }
}

TEST_CASE("a cause has room in a verdict however many have told of its consequences", "[unit][rendezvous][cause]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2});
  WorkersFailed failed{.round = Round{0}};
  for (std::size_t i = 0; i < failures_kept_max; ++i) {
    failed.failures.push_back({.rank = Rank{10 + static_cast<int>(i)}, .host = "b", .consequence = true});
  }
  job.say("b", failed);
  job.fail("a", 0, 0);
  job.pass(job.now + 100ms);
  REQUIRE(job.rendezvous.verdict()->failures.size() == failures_kept_max);
  REQUIRE(job.rendezvous.verdict()->failures.front().host == "a");
}

TEST_CASE("nobody is waited for who has told of more failures than a verdict holds", "[unit][rendezvous][cause]") {
  constexpr int nodes = static_cast<int>(failures_kept_max) + 2;
  Job job{{.min_nodes = nodes, .max_nodes = nodes}};
  std::vector<std::string> names;
  for (int i = 0; i < nodes; ++i) job.join(names.emplace_back(fmt::format("n{:03}", i)), 1);
  job.say("n000", StoreReady{Round{0}, Port{4000}});
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
  const TimePoint failed_at = job.now;
  const auto tells = [&](int i) {
    WorkersFailed failed{.round = Round{0}};
    failed.failures.push_back(
        {.rank = Rank{i}, .exit_code = 1, .host = names.at(static_cast<std::size_t>(i)), .consequence = true});
    job.say(names.at(static_cast<std::size_t>(i)), failed);
  };
  for (int i = 0; i + 1 < nodes; ++i) tells(i);
  job.pass(failed_at + RendezvousSettings{}.doubt);
  REQUIRE_FALSE(job.rendezvous.verdict());
  tells(nodes - 1);
  REQUIRE(job.rendezvous.verdict());
}

TEST_CASE("who ends the job while a cause is waited for keeps what the others told", "[unit][rendezvous][cause]") {
  Job job = running_job(3, {.min_nodes = 3, .max_nodes = 3});
  WorkersFailed failed{.round = Round{0}};
  for (const int rank : {0, 1}) {
    failed.failures.push_back({.rank = Rank{rank}, .exit_code = 1, .host = "a", .consequence = true});
  }
  job.say("a", failed);
  job.pass(job.now + 100ms);
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::doubting);
  Leave leave{.ends_job = true, .exit_code = 130, .reason = "interrupted"};
  leave.failures.push_back({.rank = Rank{2}, .exit_code = 7, .host = "b"});
  leave.failures.push_back({.rank = Rank{1}, .exit_code = 7, .host = "b", .consequence = true});
  job.say("b", leave);
  const std::vector<WorkerFailure> told = job.rendezvous.verdict()->failures;
  REQUIRE(told.size() == 3);  // of each rank once
  REQUIRE(told.front().rank == Rank{2});
  REQUIRE(std::ranges::count(told, std::string{"a"}, &WorkerFailure::host) == 1);
}
