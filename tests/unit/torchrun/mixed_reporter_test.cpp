// Who of our nodes has the report of a job that they share with torchrun's.
#include "tests/unit/torchrun/mixed_host.hpp"

namespace torchup {

using namespace mixed_host;

namespace {

/// Of torchrun's agent, which has been in rounds before and so is group rank 0, and ours on hosts a and c.
struct SharedJob : Host {
  static constexpr std::uint32_t a = 0, c = 1, d = 2;
  static constexpr std::int64_t round = 3;

  static Join agent_of(const std::string& name) {
    Join join = agent(name, 3);
    join.node = NodeId{name + (name == "a" ? "_2_0" : "_1_0")};  // by which c comes before a
    join.terms.max_nodes = 3;
    return join;
  }
  void run_round() {
    join(a, agent_of("a"));
    join(c, agent_of("c"));
    theirs_comes(round);
    const std::string place = "torch.rendezvous.job.3/";
    keys.map[place + "MASTER_ADDR"] = "b";
    keys.map[place + "MASTER_PORT"] = "29500";
    keys.map[place + "torchelastic/assigned_ranks/1"] = "[1, 5, 1, 5]";
    keys.map[place + "torchelastic/assigned_ranks/2"] = "[3, 5, 3, 5]";
    pass(300ms);
    REQUIRE(last<Placed>(c));
    REQUIRE(last<Placed>(c)->placement.group_rank == GroupRank{1});
    REQUIRE(last<Placed>(a));
    for (const std::uint32_t peer : connected) (void)step(Alive{Peer{peer}});
  }
  void say(std::uint32_t peer, const AgentMessage& message) {
    (void)step(Said{Peer{peer}, message});
    pass(500ms);
  }
  std::string reporter(std::uint32_t peer) {
    REQUIRE(last<End>(peer));
    return last<End>(peer)->verdict.reporter;
  }
  static WorkersFailed failed_on(const std::string& host) {
    return {Round{round}, {WorkerFailure{.exit_code = 3, .host = host}}, false};
  }
  static Leave leave(bool ends_job) { return {.ends_job = ends_job, .exit_code = 130, .reason = "interrupted"}; }
};

}  // namespace

TEST_CASE("the report of a job that is torchrun's too is one of our nodes'", "[unit][mixed]") {
  SharedJob job;
  job.run_round();
  std::string expected = "c";
  SECTION("the first one's of them") { job.say(job.a, job.leave(true)); }
  SECTION("the first one's that can hear that") {
    (void)job.step(Gone{Peer{job.c}, false});
    job.say(job.a, job.leave(true));
    REQUIRE(job.reporter(job.a) == "a");
    (void)job.step(Connected{Peer{job.c}, "10.0.0.1", "10.0.0.5"});
    (void)job.step(Resumed{Peer{job.c}, {.join = job.agent_of("c")}});
    expected = "a";
  }
  SECTION("that of the failure's host") {
    job.say(job.c, job.failed_on("a"));
    expected = "a";
  }
  SECTION("the first one's of them where the store cannot be used") {
    job.keys.map["torch.rendezvous.job"] = "bm9uZQ==";
    job.pass(500ms);
    REQUIRE(job.last<End>(job.a)->verdict.exit_code == 68);
  }
  for (const std::uint32_t peer : {job.a, job.c}) REQUIRE(job.reporter(peer) == expected);
  REQUIRE(job.pure.verdict()->reporter == expected);
}

TEST_CASE("of a job that is torchrun's too a node that leaves others alone has no report", "[unit][mixed]") {
  SharedJob job;
  job.run_round();
  job.say(job.c, job.leave(false));
  REQUIRE(job.reporter(job.c).empty());
  job.say(job.a, job.leave(true));
  REQUIRE(job.reporter(job.a) == "a");
}

TEST_CASE("before a round with torchrun's agents the report is the node's that came first", "[unit][mixed]") {
  SharedJob job;
  job.join(job.c, job.agent_of("c"));
  job.join(job.a, job.agent_of("a"));
  SECTION("where they had none") {}
  SECTION("whatever places they had in rounds without these") {
    job.join(job.d, job.agent_of("d"));
    REQUIRE(job.last<HostStore>(job.a));
    (void)job.step(Said{Peer{job.a}, StoreReady{Round{0}, Port{77}}});
    REQUIRE(job.last<Placed>(job.c));
    (void)job.step(Gone{Peer{job.d}, true});
    job.join(job.a, job.agent_of("a"));
    job.join(job.c, job.agent_of("c"));
  }
  job.theirs_comes(job.round);
  REQUIRE_FALSE(job.last<Placed>(job.a));
  job.say(job.a, job.leave(true));
  for (const std::uint32_t peer : {job.a, job.c}) REQUIRE(job.reporter(peer) == "c");
}

}  // namespace torchup
