#include <functional>

#include "rendezvous/core/membership/same_world.hpp"
#include "rendezvous_job.hpp"

using namespace torchup;
using namespace torchup::rendezvous_job;

TEST_CASE("a node that leaves is let go, and the others go on while they are enough", "[unit][rendezvous]") {
  Job job = running_job(3, {.min_nodes = 2, .max_nodes = 3, .last_call = 1s});
  const Leave leave{.ends_job = false, .exit_code = 143, .reason = "terminated"};
  const std::string first = job.say("b", leave);
  REQUIRE(first.starts_with("b end 143: terminated\n"));
  REQUIRE(first.find("a stop round 0 (membership): node b leaves: terminated\n") != std::string::npos);
  job.gone("b");
  job.join("a");
  SECTION("leaves that are close together are one decision") {
    REQUIRE(job.join("c").empty());
    REQUIRE(job.pass(job.now + 2s - 1ns).find("host store") == std::string::npos);
    REQUIRE(job.pass(job.now + 1ns) == "a host store of round 1\n");
  }
  SECTION("below min nodes the job ends with the leaver's code") {
    job.join("c");
    const std::string second = job.say("c", leave);
    REQUIRE(second.find("a end 143: node c left (terminated) and fewer than 2 nodes remain\n") != std::string::npos);
  }
}

TEST_CASE("one node ends the job for all, and twice without grace", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2});
  const std::string ends =
      job.say("b", Leave{.ends_job = true, .exit_code = 130, .reason = "interrupted", .stop_signal = 2});
  REQUIRE(ends.find("a end 130: interrupted\n") != std::string::npos);
  REQUIRE(job.rendezvous.verdict()->stop_signal == 2);
  const std::string again = job.say("b", Leave{.exit_code = 130, .stop_signal = 2, .kill_now = true});
  REQUIRE(again.find("a end 130: interrupted\n") != std::string::npos);
  REQUIRE(job.rendezvous.verdict()->kill_now);
  REQUIRE(job.say("b", Leave{.exit_code = 130, .kill_now = true}).empty());
}

TEST_CASE("a silent agent is expelled at its lease and fenced", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 1, .max_nodes = 2, .last_call = 1s, .lease = 10s});
  const TimePoint heard = job.now;
  REQUIRE(job.pass(heard + 10s - 1ns, "b").empty());
  REQUIRE(job.pass(heard + 10s, "b") ==
          "b stop round 0 (fenced): was silent for 10 s\na stop round 0 (membership): node b was silent for 10 s\n");
  SECTION("what it says as the former node is not heard") {
    REQUIRE(job.say("b", WorkersSucceeded{Round{0}}).empty());
    REQUIRE(job.join("a") == "a host store of round 1\n");
  }
  SECTION("it joins again as a new one") {
    Join anew = job.join_of("b");
    anew.node = NodeId{"node-b-2"};
    job.say("b", anew);
    REQUIRE(job.join("a") == "a host store of round 1\n");
    REQUIRE(job.say("a", StoreReady{Round{1}, Port{1}}).find("b round 1: node 1 of 2") != std::string::npos);
  }
}

TEST_CASE("a coordinator that was asleep expels nobody", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .lease = 10s});
  const TimePoint woken = job.now + 100s;
  REQUIRE(job.at(woken).empty());
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
  REQUIRE(job.pass(woken + 10s, "b").find("b stop round 0 (fenced)") != std::string::npos);
}

TEST_CASE("a coordinator that was asleep decides nothing before it has read what came meanwhile",
          "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .join_timeout = 600s, .lease = 10s}};
  SECTION("who has come to a job that waits") {
    job.join("a");
    job.now += 1200s;
    REQUIRE(job.alive("a").find("end 66") == std::string::npos);
    SECTION("and was there") { REQUIRE(job.join("b") == "a host store of round 0\n"); }
    SECTION("or was not") {
      REQUIRE(job.pass(job.now + 10s - 1ns).find("end 66") == std::string::npos);
      REQUIRE(job.pass(job.now + 1ns).find("a end 66") != std::string::npos);
    }
  }
  SECTION("that the workers' store is open") {
    job.join("a");
    job.join("b");
    job.now += 1200s;
    REQUIRE(job.alive("b").empty());
    REQUIRE(job.say("a", StoreReady{Round{0}, Port{1}}).starts_with("a round 0: node 0 of 2"));
  }
  SECTION("who is back of a round that may run") {
    Placement place{.round = Round{7}, .group_world_size = 2, .world_size = 4};
    job.resume("a", Resume::Stage::running, place);
    REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::restoring);
    job.now += 1200s;
    REQUIRE(job.alive("a").empty());
    place.group_rank = GroupRank{1};
    place.first_rank = Rank{2};
    REQUIRE(job.resume("b", Resume::Stage::running, place).empty());
    REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
  }
}

TEST_CASE("terms must be the job's", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .max_restarts = 3}};
  job.join("a");
  job.terms.max_restarts = 4;
  REQUIRE(job.join("b") == "b refused 68: --max-restarts is 4 here and 3 in the job\n");
  job.terms.max_restarts = 3;
  REQUIRE(job.join("c") == "a host store of round 0\n");
}

TEST_CASE("the roster tells who was refused, until it joins", "[unit][rendezvous]") {
  Job job{{.min_nodes = 3, .max_nodes = 3, .join_timeout = 60s, .hostlist = "a,b,c"}};
  job.join("a");
  job.connect("b");
  Join other = job.join_of("b");
  other.terms.max_restarts = 9;
  job.say("b", other);
  REQUIRE(
      job.pass(t0 + 2s).find(
          "a waiting: 1 of 3 nodes: a; refused: b (--max-restarts is 9 here and 0 in the job); not heard of: c\n") !=
      std::string::npos);
  JobView view = job.rendezvous.view(job.now);
  REQUIRE(view.nodes.size() == 3);
  REQUIRE(view.nodes[1].state == "refused");
  REQUIRE(view.nodes[1].reason == "--max-restarts is 9 here and 0 in the job");
  REQUIRE(view.nodes[2].state == "missing");
  REQUIRE(view.waits_for.find("refused: b") != std::string::npos);
  job.join("b");
  REQUIRE(job.rendezvous.roster(job.now) == "2 of 3 nodes: a, b; not heard of: c");
}

TEST_CASE("demanded group ranks are obeyed, and used once", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2}};
  const auto join = [&](const std::string& name, int group_rank) {
    Join said = job.join_of(name);
    said.group_rank = GroupRank{group_rank};
    job.connect(name);
    return job.say(name, said);
  };
  join("a", 1);
  REQUIRE(join("b", 1) == "b refused 68: --node-rank 1 is used twice: by b and by a\n");
  REQUIRE(join("c", 2) == "c refused 68: --node-rank 2 does not fit 2 nodes\n");
  REQUIRE(join("d", 0) == "d host store of round 0\n");
}

TEST_CASE("by a scheduler's index there are spares, and nodes that come back", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .rank_order = RankOrder::index}};
  const auto join = [&](const std::string& name, int index) {
    Join said = job.join_of(name);
    said.group_rank = GroupRank{index};
    job.connect(name);
    return job.say(name, said);
  };
  REQUIRE(join("c", 2).find("refused") == std::string::npos);
  SECTION("beside their former selves") {
    REQUIRE(job.join_anew("c", 1).find("refused") != std::string::npos);  // without an index
    Join again = job.join_of("c");
    again.node = NodeId{"node-c_2"};
    again.group_rank = GroupRank{2};
    REQUIRE(job.say("c", again).find("refused") == std::string::npos);
    REQUIRE(job.rendezvous.member_count() == 2);
  }
  SECTION("on other machines, once their former selves are silent") {
    job.pass(job.now + job.terms.lease / 2, "c");
    REQUIRE(join("b", 2).find("refused") == std::string::npos);
  }
  SECTION("and in their order") {
    REQUIRE(join("a", 65535).find("refused") == std::string::npos);
    REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::hosting);
  }
}

TEST_CASE("a scheduler's index that cannot be is refused by name", "[unit][rendezvous]") {
  Job job{{.min_nodes = 3, .max_nodes = 3, .rank_order = RankOrder::index}};
  const auto join = [&](const std::string& name, std::optional<GroupRank> index) {
    Join said = job.join_of(name);
    said.group_rank = index;
    job.connect(name);
    return job.say(name, said);
  };
  const bool first = GENERATE(true, false);
  if (!first) REQUIRE(join("a", GroupRank{0}).empty());
  REQUIRE(join("b", GroupRank{-1}) == "b refused 68: the scheduler's index -1 is not from 0 to 65535\n");
  REQUIRE(join("b", GroupRank{65536}) == "b refused 68: the scheduler's index 65536 is not from 0 to 65535\n");
  REQUIRE(join("b", {}) == "b refused 68: it has no index of a scheduler's, by which this job orders its nodes\n");
  if (first) return;
  REQUIRE(join("b", GroupRank{0}) == "b refused 68: the scheduler's index 0 is used twice: by b and by a\n");
  REQUIRE(job.pass(job.now + 2s).find("refused: b (the scheduler's index 0 is used twice") != std::string::npos);
  job.gone("a");
  REQUIRE(join("b", GroupRank{0}).find("refused") == std::string::npos);  // whose it is now
}

TEST_CASE("a node's index may change while it is a member", "[unit][rendezvous]") {
  Job job{{.min_nodes = 3, .max_nodes = 3, .rank_order = RankOrder::index}};
  const auto join = [&](const std::string& name, int index) {
    Join said = job.join_of(name);
    said.group_rank = GroupRank{index};
    if (!job.peer_of.contains(name)) job.connect(name);
    return job.say(name, said);
  };
  join("a", 1);
  join("a", 2);
  REQUIRE(join("b", 1).find("refused") == std::string::npos);
  REQUIRE(join("c", 2) == "c refused 68: the scheduler's index 2 is used twice: by c and by a\n");
}

TEST_CASE("facts that differ are told, or refused", "[unit][rendezvous]") {
  const auto join = [](Job& job, const std::string& name, const std::string& version) {
    Join said = job.join_of(name);
    said.facts = {{"torch", version}, {"program", "sha256:1"}};
    job.connect(name);
    return job.say(name, said);
  };
  SECTION("warn") {
    Job job{{.min_nodes = 3, .max_nodes = 3, .same_world = SameWorld::warn}};
    join(job, "a", "2.15.0");
    join(job, "b", "2.11.0");
    const std::string said = join(job, "c", "2.15.0");
    REQUIRE(said.find("b waiting: warning: the nodes differ: torch: 2.11.0 on b; 2.15.0 on a, c\n") !=
            std::string::npos);
    REQUIRE(said.find("a host store") != std::string::npos);
  }
  SECTION("fail") {
    Job job{{.min_nodes = 3, .max_nodes = 3, .same_world = SameWorld::fail}};
    join(job, "a", "2.15.0");
    REQUIRE(join(job, "b", "2.11.0") ==
            "b refused 68: the nodes differ: torch: 2.11.0 on this node; 2.15.0 on the job's first node\n");
  }
}

TEST_CASE("all that differs is told in one line", "[unit][rendezvous]") {
  const std::string a = "a", b = "b";
  const std::vector<Fact> here{{"program", "1"}, {"torch", "2"}}, there{{"torch", "3"}};
  const HostFacts both[] = {{&a, &here}, {&b, &there}};
  REQUIRE(world_differences(both) == "program: (none) on b; 1 on a | torch: 2 on a; 3 on b");
}

/// Node c comes to a running job of a and b, `before_end` happens, and c is gone.
void come_and_go(Job& job, const std::function<void()>& before_end) {
  job.join("c");
  job.now += 200ms;
  job.step(Tick{});
  job.join("a");
  job.join("b");
  job.say("a", StoreReady{job.rendezvous.round(), Port{1}});
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
  before_end();
  job.gone("c");
  job.join("a");
  job.join("b");
  job.say("a", StoreReady{job.rendezvous.round(), Port{1}});
}

TEST_CASE("nodes that the coordinator lost by its own sleep are not put aside", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 3, .last_call = 1s, .lease = 10s});
  for (int life = 0; life < 3; ++life) come_and_go(job, [&] { job.at(job.now + 40s); });
  job.join("c");
  REQUIRE(job.pass(job.now + 1s).find("joining: c") != std::string::npos);
}

TEST_CASE("a host that is lost again and again is put aside while others are enough", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 3, .last_call = 1s});
  for (int life = 0; life < 3; ++life) come_and_go(job, [] {});
  const Round round = job.rendezvous.round();
  job.join("c");
  const TimePoint joined = job.now;
  REQUIRE(job.pass(joined + 4min).empty());
  REQUIRE(job.rendezvous.round() == round);
  SECTION("until it has been calm for long enough") {
    REQUIRE(job.pass(joined + 6min).find("joining: c") != std::string::npos);
  }
  SECTION("it is taken when there is nobody else") {
    job.gone("b");
    REQUIRE(job.join("a") == "a host store of round " + std::to_string(round.value() + 1) + "\n");
  }
}

TEST_CASE("whoever leaves while it is put aside counts no more", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 3, .join_timeout = 1min, .last_call = 1s});
  for (int life = 0; life < 3; ++life) come_and_go(job, [] {});
  job.join("c");
  SECTION("beside the job") {
    job.gone("c");
    job.gone("b");
    REQUIRE(job.join("a").empty());
    REQUIRE(job.pass(job.now + 59s).find("host store") == std::string::npos);
  }
  SECTION("with the job's end") {
    job.fail("a", static_cast<int>(job.rendezvous.round().value()), 0);
    job.pass(job.now + 1s);
    REQUIRE(job.rendezvous.verdict());
    job.join_anew("d");
    REQUIRE_FALSE(job.rendezvous.verdict());
    REQUIRE(job.pass(job.now + 59s).find("host store") == std::string::npos);
  }
  REQUIRE(job.pass(job.now + 2s).find("end 66") != std::string::npos);
}

TEST_CASE("what a node said before it knew that it was given up is void", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .lease = 10s});
  const auto stop_for_b = [&] {
    REQUIRE(job.pass(job.now + 11s, "b").find("b stop round 0 (fenced): was silent") != std::string::npos);
  };
  const auto resume_elsewhere = [&] {
    stop_for_b();
    Placement former;
    former.group_world_size = 2;
    REQUIRE(job.resume("b", Resume::Stage::stopping, former).find("b stop round 0 (fenced)") != std::string::npos);
  };
  SECTION("by its lease") { stop_for_b(); }
  SECTION("as it restated itself") { resume_elsewhere(); }
  job.join("a");
  REQUIRE(job.rendezvous.member_count() == 1);
  REQUIRE(job.join("b").empty());  // sent before the fence arrived there
  REQUIRE(job.rendezvous.member_count() == 1);
  Join next = job.join_of("b");
  next.node = NodeId{"node-b_1"};
  REQUIRE(job.say("b", next) == "a host store of round 1\n");  // its workers are dead
}

TEST_CASE("agents are counted", "[unit][rendezvous]") {
  Job job{{.min_nodes = 5, .max_nodes = 5}, {.agents_max = 2}};
  job.join("a");
  REQUIRE(job.join("b").empty());
  REQUIRE(job.join("c") == "c refused 68: this coordinator takes 2 agents at most\n");
}

TEST_CASE("a host that is put aside stays so, whatever its connection does", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 3, .last_call = 1s, .lease = 10s});
  for (int life = 0; life < 3; ++life) come_and_go(job, [] {});
  job.join("c");
  const Round round = job.rendezvous.round();
  const TimePoint joined = job.now;
  for (int breaks = 0; breaks < 4; ++breaks) {
    job.pass(job.now + 3s);
    job.gone("c", false);  // its short time to come back is another than its five minutes
    job.pass(job.now + 500ms);
    REQUIRE(job.resume("c", Resume::Stage::ready).empty());
    job.pass(job.now + 3s);
  }
  REQUIRE(job.pass(joined + 4min).empty());
  REQUIRE(job.rendezvous.round() == round);
  REQUIRE(job.pass(joined + 6min).find("joining: c") != std::string::npos);
}

TEST_CASE("a fence names the round that the node is in", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 1, .max_nodes = 2, .max_restarts = 3, .last_call = 1s, .lease = 10s});
  const TimePoint heard = job.now;
  SECTION("while it stops the former one") {
    job.fail("a", 0, 0);
    job.pass(job.now + 100ms, "b");
    job.join("a");
    REQUIRE(job.rendezvous.round() == Round{1});
    REQUIRE(job.pass(heard + 10s, "b").find("b stop round 0 (fenced)") != std::string::npos);
  }
  SECTION("while its place in the next is not told yet") {
    job.fail("a", 0, 0);
    job.pass(job.now + 100ms);
    job.join("b");
    job.join("a");
    REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::hosting);
    REQUIRE(job.pass(job.now + 10s, "b").find("b stop round 0 (fenced)") != std::string::npos);
  }
}

TEST_CASE("a newcomer that is refused takes nobody's place", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .lease = 10s});
  job.gone("b", false);
  job.now += 4s;
  job.connect("c");
  Join unfit = job.join_of("c");
  unfit.host = "b";
  unfit.terms.max_nodes = 3;
  REQUIRE(job.say("c", unfit).find("c refused 68") == 0);
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
  unfit.terms = job.terms;
  REQUIRE(job.say("c", unfit).find("a stop round 0 (membership): node b is replaced") == 0);
}

TEST_CASE("where the only agent is replaced before there was a round, the new one says what the job is",
          "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .lease = 10s, .hostlist = "a,x"}};
  job.join("a");
  job.gone("a", false);
  job.terms.max_nodes = 3;
  job.terms.hostlist = "a,y";
  job.connect("c");
  Join again = job.join_of("c");
  again.host = "a";
  REQUIRE(job.say("c", again).empty());
  REQUIRE(job.rendezvous.roster(job.now).find("not heard of: y") != std::string::npos);
}

TEST_CASE("the hosts that a job expected are forgotten with it", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 3, .hostlist = "a,x"}};
  job.join("a");
  job.gone("a");
  job.terms.hostlist.clear();
  job.join("b");
  REQUIRE(job.rendezvous.roster(job.now).find("not heard of") == std::string::npos);
}

TEST_CASE("a connection that speaks for another node takes no place of the former one along", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2});
  Join anew = job.join_of("b");
  anew.node = NodeId{"node-b_1"};
  const std::string told = job.say("b", anew);
  REQUIRE(told.find("b stop round 0 (membership): this node starts anew\n") == 0);
  REQUIRE(told.find("a stop round 0 (membership): node b starts anew\n") != std::string::npos);
  REQUIRE(job.rendezvous.member_count() == 2);
}

TEST_CASE("so many nodes that were refused are told by name", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2}};
  job.join("a");
  job.terms.max_restarts = 7;
  for (std::size_t i = 0; i <= refusals_kept_max; ++i) {
    const std::string name = fmt::format("n{}", i);
    REQUIRE(job.join(name).find(name + " refused 68") == 0);
  }
  const JobView view = job.rendezvous.view(job.now);
  REQUIRE(std::ranges::count(view.nodes, "refused", &JobView::Node::state) == refusals_kept_max);
}
