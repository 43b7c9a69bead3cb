#include "rendezvous/core/rendezvous.hpp"

#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <sstream>
#include <string>

#include "rendezvous/core/job_codec.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

std::string text(const CoordinatorMessage& message) {
  std::ostringstream out;
  if (const auto* host = std::get_if<HostStore>(&message)) out << "host store of round " << host->round.value();
  if (const auto* placed = std::get_if<Placed>(&message)) {
    const Placement& p = placed->placement;
    out << "round " << p.round.value() << ": node " << p.group_rank.value() << " of " << p.group_world_size
        << ", ranks from " << p.first_rank.value() << " of " << p.world_size << ", at " << p.master_addr << ":"
        << p.master_port.value() << ", restarts " << p.restart_count;
  }
  if (const auto* stop = std::get_if<StopWorkers>(&message)) {
    const char* causes[] = {"failure", "membership", "fenced"};
    out << "stop round " << stop->round.value() << " (" << causes[static_cast<int>(stop->cause)]
        << "): " << stop->reason;
  }
  if (const auto* end = std::get_if<End>(&message))
    out << "end " << end->verdict.exit_code << ": " << end->verdict.reason;
  if (const auto* waiting = std::get_if<Waiting>(&message)) out << "waiting: " << waiting->roster;
  return out.str();
}

/// A rendezvous and agents a, b, c, … with one connection each. Every call returns what the coordinator did, one line
/// per action, without its notes.
struct Job {
  explicit Job(JobTerms job_terms, RendezvousSettings settings = {})
      : terms{std::move(job_terms)}, rendezvous{settings} {}

  std::string step(const RendezvousEvent& event) {
    std::string lines;
    for (const RendezvousAction& action : rendezvous.step(event, now)) {
      if (const auto* tell = std::get_if<Tell>(&action))
        lines += name_of.at(tell->peer) + " " + text(tell->message) + "\n";
      if (const auto* refuse = std::get_if<Refuse>(&action)) {
        lines +=
            name_of.at(refuse->peer) + " refused " + std::to_string(refuse->exit_code) + ": " + refuse->reason + "\n";
      }
    }
    return lines;
  }

  Peer connect(const std::string& name, const std::string& observed = "10.0.0.1", bool in_process = false) {
    const Peer peer{next_peer++};
    peer_of.insert_or_assign(name, peer);
    name_of.insert_or_assign(peer, name);
    step(Connected{peer, observed, "10.0.0.254", in_process});
    return peer;
  }
  Join join_of(const std::string& name, int workers = 2) const {
    Join join;
    join.node = NodeId{"node-" + name};
    join.host = name;
    join.local_world_size = workers;
    join.terms = terms;
    return join;
  }
  std::string join(const std::string& name, int workers = 2) {
    if (!peer_of.contains(name)) connect(name);
    return say(name, join_of(name, workers));
  }
  std::string say(const std::string& name, AgentMessage message) {
    return step(Said{peer_of.at(name), std::move(message)});
  }
  std::string gone(const std::string& name, bool end_of_file = true) {
    const Peer peer = peer_of.at(name);
    peer_of.erase(name);
    return step(Gone{peer, end_of_file});
  }
  std::string alive(const std::string& name) { return step(Alive{peer_of.at(name)}); }
  std::string at(TimePoint time) {
    now = time;
    return step(Tick{});
  }
  /// Lets time pass to `time` as a shell does, which wakes at each deadline; all but `silent` stay alive.
  std::string pass(TimePoint time, const std::string& silent = "-") {
    std::string lines;
    while (now < time) {
      TimePoint next = std::min(time, now + terms.lease / 10);
      if (const auto due = rendezvous.deadline(); due && *due < next) next = *due;
      now = next;
      const auto peers = peer_of;
      for (const auto& [name, peer] : peers) {
        if (name != silent) lines += step(Alive{peer});
      }
      lines += step(Tick{});
    }
    return lines;
  }
  std::string fail(const std::string& name, int round, int rank, int exit_code = 3) {
    WorkersFailed failed{.round = Round{round}};
    failed.failures.push_back({.rank = Rank{rank}, .exit_code = exit_code, .host = name});
    return say(name, failed);
  }

  /// The coordinator is killed and, after `pause`, started again with what it saved.
  void restart(Duration pause = 1s) {
    const std::string saved = encode_job({RunId{"job"}, rendezvous.snapshot(now)});
    now += pause;
    rendezvous = Rendezvous{RendezvousSettings{}, decode_job(saved)->snapshot, now};
    peer_of.clear();
  }
  std::string resume(const std::string& name, Resume::Stage stage, std::optional<Placement> placement = {}) {
    connect(name);
    return step(Resumed{peer_of.at(name), {.join = join_of(name), .stage = stage, .placement = placement}});
  }

  JobTerms terms;
  Rendezvous rendezvous;
  TimePoint now{};
  std::uint32_t next_peer = 0;
  std::map<std::string, Peer> peer_of;
  std::map<Peer, std::string> name_of;
};

/// A job of a, b (and c) whose round 0 runs, at time 0.
Job running_job(int nodes, JobTerms terms) {
  Job job{std::move(terms)};
  for (int i = 0; i < nodes; ++i) job.join(std::string(1, static_cast<char>('a' + i)));
  if (job.terms.max_nodes > nodes) job.pass(job.now + job.terms.last_call);
  job.say("a", StoreReady{Round{0}, Port{4000}});
  REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
  return job;
}

const TimePoint t0{};

}  // namespace

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
  SECTION("whoever comes later gets the same verdict") { REQUIRE(job.join("c") == "c end 0: all workers exited 0\n"); }
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
  SECTION("not back") {
    REQUIRE(job.pass(job.now + 1s - 1ns).empty());
    REQUIRE(job.pass(job.now + 1ns).find("node b did not come back") != std::string::npos);
  }
  SECTION("too late: it is fenced") {
    job.pass(job.now + 2s);
    const Peer peer = job.connect("b");
    REQUIRE(job.step(Resumed{peer, {.join = job.join_of("b"), .stage = Resume::Stage::running, .placement = mine}}) ==
            "b stop round 0 (fenced): this node was given up while it was silent\n");
  }
}

TEST_CASE("what a former connection brings late takes nobody's place", "[unit][rendezvous]") {
  Job job{{.min_nodes = 2, .max_nodes = 2, .lease = 3s}};
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
    REQUIRE(job.pass(t0 + 30s - 1ns).empty());
    REQUIRE(job.pass(t0 + 30s).find("b stop round 7 (membership): 1 of 2 nodes came back") != std::string::npos);
    job.join("b");
    REQUIRE(job.join("c") == "b host store of round 8\n");
  }
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
    REQUIRE(said.find("b waiting: warning: the nodes differ:\ntorch: 2.11.0 on b; 2.15.0 on a, c\n") !=
            std::string::npos);
    REQUIRE(said.find("a host store") != std::string::npos);
  }
  SECTION("fail") {
    Job job{{.min_nodes = 3, .max_nodes = 3, .same_world = SameWorld::fail}};
    join(job, "a", "2.15.0");
    REQUIRE(join(job, "b", "2.11.0") ==
            "b refused 68: the nodes differ:\ntorch: 2.11.0 on this node; 2.15.0 on the job's first node\n");
  }
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

TEST_CASE("agents are counted", "[unit][rendezvous]") {
  Job job{{.min_nodes = 5, .max_nodes = 5}, {.agents_max = 2}};
  job.join("a");
  REQUIRE(job.join("b").empty());
  REQUIRE(job.join("c") == "c refused 68: this coordinator takes 2 agents at most\n");
}

// ---- a coordinator that starts again with what it saved

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
  REQUIRE(job.pass(job.now + 10s - 1ms).empty());
  const std::string stops = job.pass(job.now + 1ms);
  REQUIRE(stops.find("a stop round 0 (membership): node c did not come back") != std::string::npos);
  REQUIRE(job.rendezvous.restart_count() == 0);
}

TEST_CASE("a restored job to which nobody comes back is forgotten", "[unit][rendezvous]") {
  Job job = running_job(2, {.min_nodes = 2, .max_nodes = 2, .lease = 1s});
  job.restart();
  job.pass(job.now + 10s - 1ms);
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
