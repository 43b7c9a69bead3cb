// A mixed job between two of ours: what goes into it, and what comes after it.
#include <catch2/catch.hpp>

#include "tests/unit/torchrun/mixed_host.hpp"

namespace torchup {

using namespace mixed_host;

TEST_CASE("a node that was given up stays so when the job becomes a mixed one", "[unit][mixed]") {
  Host host;
  host.join(0, agent("a"));
  host.pass(2s);
  host.join(1, agent("c"));
  host.pass(1500ms);
  REQUIRE(host.last<StopWorkers>(0));  // a was silent for too long
  REQUIRE(host.pure.member_count() == 1);
  host.theirs_comes();
  host.join(0, agent("a"));  // said before it knew
  REQUIRE(host.mixed.member_count() == 1);
  host.join(0, agent("a", 2, 1));
  REQUIRE(host.mixed.member_count() == 2);
}

TEST_CASE("an agent of a former job hears its verdict from the mixed job that follows", "[unit][mixed]") {
  Host host;
  host.join(0, agent("a"));
  host.join(1, agent("c"));
  (void)host.step(Gone{Peer{1}, false});  // its connection breaks before the end
  (void)host.step(Said{Peer{0}, Leave{.exit_code = 130}});
  REQUIRE(host.last<End>(0));
  host.join(2, agent("d"));
  host.theirs_comes();
  host.connect(3);
  (void)host.step(Resumed{Peer{3}, {.join = agent("c"), .stage = Resume::Stage::ready}});
  REQUIRE(host.last<End>(3));
  REQUIRE(host.last<End>(3)->verdict.exit_code == 130);
  REQUIRE(host.mixed.member_count() == 1);
}

TEST_CASE("torchrun's numbers of rounds tell nothing of former jobs", "[unit][mixed]") {
  Host host;
  host.join(0, agent("a"));
  host.join(1, agent("c"));
  (void)host.step(Said{Peer{0}, StoreReady{Round{0}, Port{77}}});
  (void)host.step(Said{Peer{0}, Leave{.exit_code = 130}});  // the end of our round 0
  host.join(2, agent("d"));
  host.theirs_comes();
  Join again = agent("d", 2, 1);
  again.former = Placement{.round = Round{0}};  // torchrun's
  host.join(2, again);
  REQUIRE_FALSE(host.last<End>(2));
  REQUIRE(host.mixed.member_count() == 1);
}

TEST_CASE("in a mixed job our nodes are known by their ids, with their workers", "[unit][mixed]") {
  Host host;
  host.join(0, agent("a"));
  host.theirs_comes(3);
  const auto row = [&](bool torchruns) {
    const std::vector<JobView::Node> nodes = host.keys.care.view({}, host.mixed.ours()).nodes;
    REQUIRE(nodes.size() == 2);
    return *std::ranges::find(nodes, torchruns, &JobView::Node::torchruns);
  };
  REQUIRE(row(false).node == "a_1_0");
  REQUIRE(row(false).local_world_size == 2);
  REQUIRE_FALSE(row(false).first_rank.has_value());
  REQUIRE(row(true).node.empty());
  const std::string place = "torch.rendezvous.job.3/";
  host.keys.map[place + "MASTER_ADDR"] = "b";
  host.keys.map[place + "MASTER_PORT"] = "29500";
  host.keys.map[place + "torchelastic/assigned_ranks/1"] = "[1, 3, 1, 3]";
  host.pass(300ms);
  REQUIRE(host.last<Placed>(0));
  REQUIRE(row(false).first_rank == Rank{1});
  REQUIRE_FALSE(row(true).first_rank.has_value());
  // While its workers stop they are where they were.
  (void)host.step(Said{Peer{0}, WorkersFailed{Round{3}, {WorkerFailure{.exit_code = 3}}}});
  host.pass(500ms);
  REQUIRE(host.last<StopWorkers>(0));
  REQUIRE(row(false).first_rank == Rank{1});
}

TEST_CASE("a mixed job waits for what torchrun's rendezvous waits for", "[unit][mixed]") {
  test::OwnedKeys keys;
  TorchrunState state;
  state.participants = {{theirs, 0}};
  state.last_heartbeats = {{theirs, utc0 + 1h}};
  const JobView stale{.waits_for = "0 of 2 nodes; silent: a"};
  keys.put_as(ClientId{1}, state);
  REQUIRE(keys.care.view(stale, {}).waits_for == "the end of torchrun's rendezvous, with 1 of its nodes there");
  state.complete = true;
  keys.put_as(ClientId{1}, state);
  const JobView view = keys.care.view(stale, {});
  REQUIRE(view.phase == "running");
  REQUIRE(view.waits_for.empty());
}

TEST_CASE("who hosts a mixed job takes it along", "[unit][mixed]") {
  Host host;
  (void)host.step(Connected{.peer = Peer{0}, .in_process = true});
  host.connected.insert(0);
  host.join(0, agent("a"));
  host.join(1, agent("c"));
  host.theirs_comes();
  (void)host.step(Said{Peer{0}, Leave{.ends_job = false, .exit_code = 143}});
  host.pass(500ms);
  REQUIRE(host.keys.state().closed);
  REQUIRE(host.last<End>(1));
  REQUIRE(host.last<End>(1)->verdict.exit_code == 143);
}

TEST_CASE("a run id begins anew though agents of its mixed job linger", "[unit][mixed]") {
  Host host;
  host.join(0, agent("a"));
  host.join(1, agent("c"));
  host.theirs_comes();
  (void)host.step(Gone{Peer{1}, false});
  host.close();  // their workers have failed
  host.pass(1s);
  REQUIRE(host.last<End>(0));
  REQUIRE(host.last<End>(0)->verdict.exit_code == 1);
  REQUIRE_FALSE(host.mixed.active());  // though one of torchrun's is still there
  REQUIRE(host.pure.verdict()->exit_code == 1);

  SECTION("one new agent begins it") {
    host.join(2, agent("d", 1));
    REQUIRE_FALSE(host.pure.verdict());
    host.pass(100ms);
    REQUIRE(host.last<HostStore>(2));
    REQUIRE(host.last<HostStore>(2)->round > Round{0});  // a place tells which job it was in
    host.heard.clear();
    host.connect(3);
    (void)host.step(Resumed{Peer{3}, {.join = agent("c"), .stage = Resume::Stage::ready}});
    REQUIRE(host.last<End>(3));
    REQUIRE(host.last<End>(3)->verdict.exit_code == 1);
    (void)host.step(Said{Peer{0}, Leave{.exit_code = 130, .stop_signal = 2, .kill_now = true}});
    REQUIRE(host.last<End>(0)->verdict.kill_now);  // in a hurry now
    REQUIRE(host.heard[3].size() == 1);
    REQUIRE(host.heard[2].empty());
    REQUIRE(host.pure.member_count() == 1);
  }
  SECTION("one that has not heard the verdict does not") {
    host.connect(3);
    (void)host.step(Resumed{Peer{3}, {.join = agent("c"), .stage = Resume::Stage::ready}});
    REQUIRE(host.last<End>(3));
    REQUIRE(host.pure.verdict());
  }
  SECTION("and it can be a mixed one again") {
    host.keys.forget();
    host.join(2, agent("d"));
    host.theirs_comes();
    REQUIRE(host.mixed.member_count() == 1);
    REQUIRE(host.keys.state().participants.size() == 2);
    REQUIRE_FALSE(host.last<End>(2));
  }
}

TEST_CASE("who comes while the last nodes of a mixed job end belongs to the next one", "[unit][mixed]") {
  Host host;
  host.join(0, agent("a"));
  host.join(1, agent("c"));
  host.theirs_comes();
  TorchrunState state = host.keys.state();
  state.complete = true;
  std::int64_t rank = 0;
  for (auto& [node, its_rank] : state.participants) its_rank = rank++;
  host.keys.put(state);
  host.pass(100ms);
  (void)host.step(Said{Peer{0}, StoreReady{Round{0}, Port{77}}});
  (void)host.step(Said{Peer{1}, StoreReady{Round{0}, Port{77}}});
  for (int group_rank = 0; group_rank < 3; ++group_rank) {
    host.keys.map["torch.rendezvous.job.0/torchelastic/role_info/" + std::to_string(group_rank)] =
        R"({"role": "default", "rank": 0, "local_world_size": 2})";
  }
  host.pass(1s);
  REQUIRE(host.last<Placed>(0));
  REQUIRE(host.last<Placed>(1));
  const std::string barrier = "torch.rendezvous.job.0/torchelastic/agent/terminal_state/";
  host.keys.map[barrier + "num_members"] = "1";  // theirs
  (void)host.step(Said{Peer{1}, WorkersSucceeded{Round{0}}});
  REQUIRE_FALSE(host.last<End>(1));
  SECTION("where all have succeeded, they end at one moment") {
    (void)host.step(Said{Peer{0}, WorkersSucceeded{Round{0}}});  // the last of all
    for (const std::uint32_t peer : {0U, 1U}) REQUIRE(host.last<End>(peer)->verdict.exit_code == 0);
    REQUIRE_FALSE(host.mixed.active());
    host.join(2, agent("d", 1));
  }
  SECTION("where one still stops its workers, when that one has") {
    (void)host.step(Said{Peer{0}, WorkersFailed{Round{0}, {WorkerFailure{.exit_code = 3}}}});
    host.pass(500ms);
    REQUIRE(host.last<StopWorkers>(0));
    host.keys.map[barrier + "last_member"] = "<val_ignored>";
    host.pass(100ms);
    REQUIRE(host.last<End>(1)->verdict.exit_code == 0);
    host.join(2, agent("d", 1));
    REQUIRE(host.mixed.active());
    REQUIRE_FALSE(host.last<End>(2));
    host.join(0, agent("a"));
    REQUIRE(host.last<End>(0)->verdict.exit_code == 1);
    REQUIRE_FALSE(host.mixed.active());
  }
  host.pass(200ms);
  REQUIRE(host.last<HostStore>(2));
}

TEST_CASE("a mixed job that all of ours have left goes on for torchrun's", "[unit][mixed]") {
  Host host;
  host.join(0, agent("a"));
  host.theirs_comes();
  (void)host.step(Said{Peer{0}, Leave{.ends_job = false, .exit_code = 143}});
  host.pass(500ms);
  REQUIRE(host.last<End>(0)->verdict.exit_code == 143);
  REQUIRE(host.mixed.active());
  host.join(1, agent("c"));  // takes part
  host.pass(500ms);
  REQUIRE(host.mixed.member_count() == 1);
  REQUIRE(host.keys.state().wait_list.size() == 1);
  (void)host.step(Gone{Peer{1}, true});
  host.attended = false;
  host.pass(500ms);
  REQUIRE_FALSE(host.mixed.active());
  REQUIRE_FALSE(host.pure.verdict());
  REQUIRE(host.pure.member_count() == 0);
}

namespace {

Join seated(int group_rank) {
  Join join = agent("n" + std::to_string(group_rank), 3);
  join.group_rank = GroupRank{group_rank};
  join.terms.max_nodes = 3;
  return join;
}

std::string wire(const std::string& name) { return "job/torchelastic/" + name; }

/// Group ranks 0 and 2 are ours, 1 is torchrun's.
void run_static(Host& host, std::uint32_t first_peer, Port port) {
  host.heard.clear();
  REQUIRE_FALSE(host.mixed.wanted(host.keys, host.pure));
  host.join(first_peer + 1, seated(2));
  REQUIRE_FALSE(host.mixed.wanted(host.keys, host.pure));  // nobody of torchrun's has come
  host.keys.map[wire("role_info/1")] = R"({"role": "default", "rank": 1, "local_world_size": 1})";
  REQUIRE(host.mixed.wanted(host.keys, host.pure));
  host.begin();
  host.pass(500ms);
  REQUIRE_FALSE(host.last<Placed>(first_peer + 1));  // not before group rank 0 has shared out ranks
  REQUIRE_FALSE(host.keys.map.contains(wire("assigned_ranks/1")));
  host.join(first_peer, seated(0));
  REQUIRE(host.last<HostStore>(first_peer));
  (void)host.step(Said{Peer{first_peer}, StoreReady{Round{0}, port}});
  host.pass(500ms);
  REQUIRE(host.keys.map.at(wire("assigned_ranks/1")) == "[2, 5, 2, 5]");
  for (const std::uint32_t peer : {first_peer, first_peer + 1}) {
    REQUIRE(host.last<Placed>(peer));
    REQUIRE(host.last<Placed>(peer)->placement.master_port == port);
    (void)host.step(Said{Peer{peer}, WorkersSucceeded{Round{0}}});
  }
  host.pass(500ms);
  REQUIRE(host.last<Placed>(first_peer));  // torchrun's has not succeeded yet
  REQUIRE(host.keys.map.at(wire("agent/terminal_state/num_members")) == "2");
  host.keys.map[wire("agent/terminal_state/num_members")] = "3";
  host.keys.map[wire("agent/terminal_state/last_member")] = "<val_ignored>";
  host.pass(500ms);
  for (const std::uint32_t peer : {first_peer, first_peer + 1}) {
    REQUIRE(host.last<End>(peer));
    REQUIRE(host.last<End>(peer)->verdict.exit_code == 0);
  }
}

}  // namespace

TEST_CASE("a static run id begins anew, at the same store, as with torchrun's own", "[unit][mixed]") {
  Host host;
  run_static(host, 0, Port{29500});
  REQUIRE_FALSE(host.mixed.active());
  REQUIRE(host.keys.map.contains(wire("agent/terminal_state/last_member")));  // who waits for it may read it late
  run_static(host, 2, Port{29501});
}

TEST_CASE("group ranks are given once in a mixed job, too", "[unit][mixed]") {
  Host host;
  host.join(0, seated(0));
  host.keys.map[wire("role_info/1")] = R"({"role": "default", "rank": 1, "local_world_size": 1})";
  host.begin();
  const auto refused = [&](std::uint32_t peer, const Join& join) {
    host.connect(peer);
    const auto actions = host.step(Said{Peer{peer}, join});
    return std::ranges::any_of(actions, [](const auto& action) { return std::holds_alternative<Refuse>(action); });
  };
  Join same = seated(0);
  same.host = "m";
  same.node = NodeId{"m_1_0"};
  REQUIRE(refused(1, same));
  REQUIRE(refused(2, seated(3)));
  (void)host.step(Gone{Peer{0}, false});
  Join another = seated(2);  // on the same machine: no replacement of the silent one
  another.host = "n0";
  REQUIRE_FALSE(refused(3, another));
  REQUIRE(host.mixed.member_count() == 2);
  Join again = seated(0);
  again.node = NodeId{"n0_2_0"};
  REQUIRE_FALSE(refused(4, again));
  REQUIRE(host.mixed.member_count() == 2);
}

}  // namespace torchup
