// A run id that is used again, and jobs that are forgotten.
#include "rendezvous_job.hpp"

using namespace torchup;
using namespace torchup::rendezvous_job;

namespace {

const Leave interrupted{.ends_job = true, .exit_code = 130, .reason = "interrupted", .stop_signal = 2};

}  // namespace

TEST_CASE("an agent that is new to the run id begins another job after the verdict", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .max_restarts = 1});
  job.fail("b", 0, 3);
  job.pass(job.now + 100ms);
  job.join("a");
  job.join("b");
  job.say("a", StoreReady{Round{1}, Port{4001}});
  job.fail("b", 1, 3);
  REQUIRE(job.pass(job.now + 100ms).find("a end 1: rank 3 on b exited with 3") != std::string::npos);
  job.all_gone();
  job.now += 1s;

  job.terms.max_restarts = 2;  // another command line is another job's
  REQUIRE(job.join("a").empty());
  REQUIRE_FALSE(job.rendezvous.verdict());
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::gathering);
  const std::string formed = job.join("b");
  REQUIRE(formed.find("a host store of round 2\n") != std::string::npos);
  REQUIRE(job.say("a", StoreReady{Round{2}, Port{4002}}).find("b round 2: node 1 of 2, ranks from 2 of 4") !=
          std::string::npos);
  REQUIRE(job.rendezvous.restart_count() == 0);

  SECTION("its verdict is its own") {
    job.say("a", WorkersSucceeded{Round{2}});
    REQUIRE(job.say("b", WorkersSucceeded{Round{2}}).find("a end 0: all workers exited 0") != std::string::npos);
  }
  SECTION("it has its own restarts") {
    job.fail("a", 2, 0);
    REQUIRE(job.pass(job.now + 100ms).find("restart 1 of 2") != std::string::npos);
  }
  SECTION("a third job follows") {
    job.say("a", interrupted);
    job.all_gone();
    job.join("c");
    REQUIRE(job.join("d") == "c host store of round 3\n");
  }
}

TEST_CASE("one new agent is enough to begin, and waits for its own job's nodes", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .join_timeout = 30s});
  job.say("a", interrupted);
  job.all_gone();
  job.now += 1s;
  REQUIRE(job.join("c").empty());
  REQUIRE(job.pass(job.now + 30s).find("c end 66: too few nodes") != std::string::npos);
}

TEST_CASE("agents of the ended job hear its verdict, before and after another has begun", "[unit][rendezvous]") {
  const bool begun = GENERATE(false, true);
  CAPTURE(begun);
  Job job = running_job(3, {.min_nodes = 2, .max_nodes = 3, .last_call = 1s, .lease = 2s});
  job.connect("s");
  job.say("s", job.join_of("s"));  // a spare, which never had a place
  job.gone("b", false);            // their connections break, and the end comes before they are back
  job.gone("s", false);
  const Placement place{.round = Round{0}, .group_world_size = 3, .world_size = 6};
  job.say("a", interrupted);
  job.all_gone();
  job.now += 500ms;
  if (begun) {
    job.join("x");
    REQUIRE(job.join("y").empty());  // until the last call
  }
  const std::string end = " end 130: interrupted\n";
  SECTION("restated") {
    REQUIRE(job.resume("b", Resume::Stage::running, place) == "b" + end);
    REQUIRE(job.resume("s", Resume::Stage::ready) == "s" + end);
  }
  SECTION("fenced meanwhile") { REQUIRE(job.join_anew("b", 1, place) == "b" + end); }
  if (!begun) return;
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::gathering);
  REQUIRE(job.rendezvous.member_count() == 2);
  REQUIRE(job.pass(job.now + 1s).find("x host store of round 1\n") != std::string::npos);
}

TEST_CASE("an agent of the ended job that is in the next one hears no verdict of the first", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 1, .max_nodes = 2, .join_timeout = 1h, .last_call = 1s, .lease = 2s});
  job.gone("b", false);
  job.say("a", interrupted);
  job.all_gone();
  job.join("a");
  job.join("b");  // in a container that was started again it has the same name
  REQUIRE(job.rendezvous.member_count() == 2);
  job.pass(job.now + 3s, "b");  // it loses its place there, and comes back as another
  REQUIRE(job.rendezvous.member_count() == 1);
  const std::string back = job.join_anew("b", 1, Placement{.round = Round{1}, .group_world_size = 2, .world_size = 4});
  REQUIRE(back.find("end 130") == std::string::npos);
  REQUIRE(job.rendezvous.member_count() == 2);
}

namespace {

/// Of the three hosts that are expected a and b have places.
struct Spared : Job {
  explicit Spared(bool hosted, RankOrder order = RankOrder::index, bool own_run_id = true)
      : Job{{.min_nodes = 2,
             .max_nodes = 2,
             .last_call = 30s,
             .rank_order = order,
             .hostlist = "a,b,c",
             .own_run_id = own_run_id}} {
    connect("a", "", hosted);
    arrive("a");
    connect("b");
    arrive("b");
    say("a", StoreReady{Round{0}, Port{4000}});
    REQUIRE(rendezvous.phase() == Rendezvous::Phase::running);
  }
  std::string arrive(const std::string& name) {
    Join said = join_of(name);
    if (terms.rank_order == RankOrder::index) said.group_rank = GroupRank{name.front() - 'a'};
    return say(name, said);
  }
  void succeed() {
    say("a", WorkersSucceeded{Round{0}});
    say("b", WorkersSucceeded{Round{0}});
    REQUIRE(rendezvous.verdict());
  }
  std::string comes(const std::string& name) {
    connect(name);
    return arrive(name);
  }
};

}  // namespace

TEST_CASE("a node that was expected and comes after the end hears how it was", "[unit][rendezvous]") {
  const bool hosted = GENERATE(true, false);
  Spared job{hosted};
  SECTION("of a job that was short") {
    job.succeed();
    job.gone("b");
    REQUIRE(job.rendezvous.awaits_late() == hosted);
    REQUIRE(job.comes("c") == "c end 0: all workers exited 0\n");
    REQUIRE_FALSE(job.rendezvous.awaits_late());
    REQUIRE(job.rendezvous.verdict());
    SECTION("once") { REQUIRE(job.comes("c").empty()); }
  }
  SECTION("of one that was not, for which nobody stays") {
    job.pass(job.now + 30s);
    job.succeed();
    REQUIRE_FALSE(job.rendezvous.awaits_late());
    REQUIRE(job.comes("c") == "c end 0: all workers exited 0\n");
  }
  SECTION("of one that was interrupted, for which nobody stays") {
    job.say("b", interrupted);
    REQUIRE_FALSE(job.rendezvous.awaits_late());
    REQUIRE(job.comes("c") == "c end 130: interrupted\n");
  }
  SECTION("of one that it was lost to, for which nobody stays") {
    job.comes("c");
    job.gone("c");
    job.succeed();
    REQUIRE_FALSE(job.rendezvous.awaits_late());
    REQUIRE(job.comes("c") == "c end 0: all workers exited 0\n");
  }
  SECTION("but not one that was there") {
    job.comes("c");
    job.succeed();
    REQUIRE_FALSE(job.rendezvous.awaits_late());
    job.all_gone();
    REQUIRE(job.comes("c").empty());  // another job's
    REQUIRE_FALSE(job.rendezvous.verdict());
  }
  SECTION("but not one that nobody expected") {
    job.succeed();
    job.all_gone();
    job.terms.hostlist.clear();
    REQUIRE(job.comes("d").empty());
    REQUIRE_FALSE(job.rendezvous.verdict());
    REQUIRE(job.comes("c").find("end 0: all workers exited 0") == std::string::npos);
  }
}

TEST_CASE("whoever hosts a short job stays for late nodes as long as its last call would be", "[unit][rendezvous]") {
  Spared job{true};
  job.pass(job.now + 2s);
  job.succeed();
  job.gone("b");
  REQUIRE(job.rendezvous.deadline() == t0 + 30s);
  job.at(t0 + 30s - 1ns);
  REQUIRE(job.rendezvous.awaits_late());
  job.at(t0 + 30s);
  REQUIRE_FALSE(job.rendezvous.awaits_late());
}

TEST_CASE("a run id that is its job's alone is so whatever its ranks are ordered by", "[unit][rendezvous]") {
  Spared job{false, RankOrder::address};
  job.succeed();
  job.all_gone();
  REQUIRE(job.comes("c") == "c end 0: all workers exited 0\n");
  REQUIRE(job.rendezvous.verdict());
}

TEST_CASE("a run id that others may use again tells nobody of a job that it was no part of", "[unit][rendezvous]") {
  const RankOrder order = GENERATE(RankOrder::address, RankOrder::index);
  Spared job{false, order, false};
  job.succeed();
  job.all_gone();
  REQUIRE(job.comes("c").empty());
  REQUIRE_FALSE(job.rendezvous.verdict());
}

TEST_CASE("nodes that have other names than those expected are not waited for", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .hostlist = "a.example,b.example"}};
  job.connect("a", "", true);
  job.join("a");
  job.join("b");
  job.say("a", StoreReady{Round{0}, Port{4000}});
  job.say("a", WorkersSucceeded{Round{0}});
  job.say("b", WorkersSucceeded{Round{0}});
  REQUIRE(job.rendezvous.verdict());
  REQUIRE_FALSE(job.rendezvous.awaits_late());
}

TEST_CASE("a verdict is kept for five minutes", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .join_timeout = 1h});
  const Placement place{.round = Round{0}, .group_world_size = 2, .world_size = 4};
  job.gone("b", false);
  job.say("a", interrupted);
  job.all_gone();
  job.join("x");
  SECTION("not a moment less") {
    job.pass(job.now + 5min - 1ns);
    REQUIRE(job.resume("b", Resume::Stage::running, place) == "b end 130: interrupted\n");
  }
  SECTION("then its agents are strangers") {
    job.pass(job.now + 5min);
    REQUIRE(job.resume("b", Resume::Stage::running, place).find("stop round 0 (fenced)") != std::string::npos);
  }
}

TEST_CASE("no more than eight ended jobs are remembered", "[unit][rendezvous]") {
  STATIC_REQUIRE(ended_jobs_max == 8);
  Job job{{.min_nodes = 1, .max_nodes = 1}};
  for (std::size_t run = 0; run <= ended_jobs_max + 1; ++run) {
    const std::string name = "n" + std::to_string(run);
    REQUIRE(job.join(name) == name + " host store of round " + std::to_string(run) + "\n");
    job.say(name, Leave{.exit_code = static_cast<int>(run)});
    job.all_gone();
  }
  job.join("x");
  const auto back = [&](int round) {
    return job.resume("n" + std::to_string(round), Resume::Stage::running, Placement{.round = Round{round}});
  };
  REQUIRE(back(9).find("n9 end 9") == 0);
  REQUIRE(back(2).find("n2 end 2") == 0);
  REQUIRE(back(1).find("n1 end 2") == 0);  // that of the oldest job that is known
}

TEST_CASE("an agent that is known by name hears its own job's verdict, whatever round it names", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2}};
  for (const std::string name : {"m", "n"}) {
    job.join(name);
    job.join("o");
    job.gone(name, false);
    job.say("o", Leave{.exit_code = name == "m" ? 3 : 4});
    job.all_gone();
  }
  job.join("x");
  const Placement of_torchruns{.round = Round{0}};
  REQUIRE(job.resume("n", Resume::Stage::running, of_torchruns).starts_with("n end 4"));
  REQUIRE(job.resume("m", Resume::Stage::running, of_torchruns).starts_with("m end 3"));
}

TEST_CASE("of the agents that a job has lost so many are remembered for its verdict", "[unit][rendezvous]") {
  Job job = running_job(1, {.min_nodes = 1, .max_nodes = 2, .join_timeout = 1h, .last_call = 1ms});
  for (std::size_t i = 0; i <= lost_agents_max; ++i) {
    const std::string name = fmt::format("n{}", i);
    job.join(name);
    job.gone(name);
  }
  job.say("a", interrupted);
  job.all_gone();
  job.join("x");  // until another job begins, everybody who comes back hears of the last one
  const std::string last = fmt::format("n{}", lost_agents_max);
  for (const std::string& name : {last, std::string{"n1"}}) {
    REQUIRE(job.resume(name, Resume::Stage::ready) == name + " end 130: interrupted\n");
  }
  REQUIRE(job.resume("n0", Resume::Stage::ready).find("end 130") == std::string::npos);
}

TEST_CASE("a second interrupt reaches the ended job's agents alone", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2});
  job.say("a", interrupted);
  job.join_anew("c");
  job.join_anew("d");
  const std::string again = job.say("a", Leave{.exit_code = 130, .stop_signal = 2, .kill_now = true});
  REQUIRE(again == "a end 130: interrupted\nb end 130: interrupted\n");
  REQUIRE_FALSE(job.rendezvous.verdict());
  REQUIRE(job.rendezvous.still_leaving() == 2);
  job.gone("a");
  job.gone("b");
  REQUIRE(job.rendezvous.still_leaving() == 0);
}

TEST_CASE("a job that begins anew is restored as it is, with the former one's verdict", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2});
  job.gone("b", false);
  job.say("a", interrupted);
  job.all_gone();
  job.join("c");
  job.restart();
  const Placement place{.round = Round{0}, .group_world_size = 2, .world_size = 4};
  REQUIRE(job.resume("b", Resume::Stage::running, place) == "b end 130: interrupted\n");
  job.resume("c", Resume::Stage::ready);
  REQUIRE(job.join("d") == "c host store of round 1\n");
}

TEST_CASE("a job that nobody has joined is forgettable at once", "[unit][rendezvous]") {
  Rendezvous rendezvous;
  REQUIRE(rendezvous.forgettable(t0));
  (void)rendezvous.step(Connected{Peer{0}, "10.0.0.1", "10.0.0.254"}, t0);
  (void)rendezvous.step(Gone{Peer{0}}, t0);
  REQUIRE(rendezvous.forgettable(t0));
  SECTION("restored too") { REQUIRE(Rendezvous{{}, rendezvous.snapshot(t0), t0 + 1h}.forgettable(t0 + 1h)); }
}

TEST_CASE("a job is forgotten when nobody can come back to it", "[unit][rendezvous]") {
  JobTerms terms{.min_nodes = 2, .max_nodes = 2};
  SECTION("at once without a round: who comes back joins") {
    Job job{terms};
    job.join("a");
    REQUIRE_FALSE(job.rendezvous.forgettable(job.now + 24h));
    job.gone("a");
    REQUIRE(job.rendezvous.forgettable(job.now));
  }
  SECTION("else after the join timeout, or ten minutes: whatever agents say, no job stays for a year") {
    terms.join_timeout = GENERATE(Duration{1min}, Duration{24h * 365});
    const Duration kept = std::min<Duration>(terms.join_timeout, 10min);
    Job job = running_job(2, terms);
    job.all_gone();
    REQUIRE_FALSE(job.rendezvous.forgettable(job.now + kept - 1ns));
    REQUIRE(job.rendezvous.forgettable(job.now + kept));
    const TimePoint forgotten = job.now + kept;
    job.pass(job.now + 2s);
    REQUIRE((job.rendezvous.deadline() == forgotten));
  }
  SECTION("with a verdict, after five minutes") {
    Job job = running_job(2, terms);
    job.say("a", interrupted);
    job.all_gone();
    REQUIRE_FALSE(job.rendezvous.forgettable(job.now + 5min - 1ns));
    REQUIRE(job.rendezvous.forgettable(job.now + 5min));
  }
}
