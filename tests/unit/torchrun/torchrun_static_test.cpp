#include "rendezvous/core/torchrun/torchrun_static.hpp"

#include <catch2/catch.hpp>

#include "rendezvous/core/torchrun/mixed_job.hpp"
#include "rendezvous/core/torchrun/mixed_static.hpp"
#include "tests/support/owned_keys.hpp"

namespace torchup {
namespace {

using namespace std::chrono_literals;

Join join_of(int group_rank, int nodes, int restarts = 0) {
  Join join;
  join.node = NodeId{"host" + std::to_string(group_rank) + "_1_0"};
  join.host = "host" + std::to_string(group_rank);
  join.addresses = {"10.0.0." + std::to_string(group_rank + 1)};
  join.local_world_size = 2;
  join.group_rank = GroupRank{group_rank};
  join.terms = {.min_nodes = nodes, .max_nodes = nodes, .max_restarts = restarts, .join_timeout = 60s};
  return join;
}

struct Node {
  explicit Node(TorchrunStatic::Settings settings) : part{std::move(settings)} {}
  void turn(Keys& keys, Duration at) {
    const auto told = part.turn(keys, TimePoint{} + at, UtcTime{});
    REQUIRE(told.has_value());
    heard.insert(heard.end(), told->begin(), told->end());
  }
  void say(const AgentMessage& message, Duration at) { part.said(message, TimePoint{} + at); }
  template <class T>
  [[nodiscard]] const T* last() const {
    return heard.empty() ? nullptr : std::get_if<T>(&heard.back());
  }

  TorchrunStatic part;
  std::vector<CoordinatorMessage> heard;
};

const std::string role = R"({"role": "default", "rank": 1, "local_world_size": 1})";

}  // namespace

TEST_CASE("ours takes its place in torchrun's static rendezvous", "[unit][torchrun]") {
  Keys keys;
  Node ours{{.run_id = RunId{"job"}, .place = MeetingPlace{"node0", Port{29500}}, .address = "10.0.0.2"}};
  ours.say(join_of(1, 2, 1), 0s);
  ours.turn(keys, 0s);
  ours.turn(keys, 1s);
  REQUIRE(keys.counted_in == 1);  // once
  REQUIRE(keys.map.at("job/torchelastic/role_info/1") == R"({"role":"default","rank":1,"local_world_size":2})");
  REQUIRE(ours.heard.empty());
  SECTION("or gives up after the join timeout") {
    ours.turn(keys, 60s);
    REQUIRE(ours.heard.empty());
    ours.turn(keys, 60001ms);
    REQUIRE(ours.last<End>()->verdict.exit_code == 66);
    return;
  }
  SECTION("or ends where it is given ranks that no node of the round can have") {
    keys.map["job/torchelastic/assigned_ranks/1"] = GENERATE("[2, 3, 1, 3]", "[0, 1, 0, 1]");
    ours.turn(keys, 2s);
    REQUIRE(ours.last<End>()->verdict.exit_code == 1);
    REQUIRE(ours.last<End>()->verdict.reason.find("none of this round") != std::string::npos);
    return;
  }
  keys.map["job/torchelastic/assigned_ranks/1"] = "[1, 3, 1, 3]";
  ours.turn(keys, 2s);
  REQUIRE(ours.last<Placed>());
  REQUIRE(ours.last<Placed>()->placement == Placement{.round = Round{0},
                                                      .group_rank = GroupRank{1},
                                                      .group_world_size = 2,
                                                      .first_rank = Rank{1},
                                                      .world_size = 3,
                                                      .first_role_rank = Rank{1},
                                                      .role_world_size = 3,
                                                      .master_addr = "node0",
                                                      .master_port = Port{29500}});
  SECTION("it ends with the others") {
    ours.say(WorkersSucceeded{Round{0}}, 3s);
    ours.turn(keys, 3s);
    REQUIRE(keys.map.at("job/torchelastic/agent/terminal_state/num_members") == "1");
    REQUIRE(ours.last<Placed>());
    REQUIRE(ours.part.finished_without_store());  // group rank 0 may be gone before we look
    keys.map["job/torchelastic/agent/terminal_state/last_member"] = "x";
    ours.turn(keys, 4s);
    REQUIRE(ours.last<End>()->verdict.exit_code == 0);
  }
  SECTION("the last of all opens the barrier") {
    keys.map["job/torchelastic/agent/terminal_state/num_members"] = "1";
    ours.say(WorkersSucceeded{Round{0}}, 3s);
    ours.turn(keys, 3s);
    REQUIRE(keys.map.contains("job/torchelastic/agent/terminal_state/last_member"));
    REQUIRE(ours.last<End>()->verdict.exit_code == 0);
  }
  SECTION("it restarts its own workers, by its own count, with the same ranks") {
    REQUIRE_FALSE(ours.part.finished_without_store());
    ours.say(WorkersFailed{Round{0}, {WorkerFailure{.rank = Rank{1}, .exit_code = 3}}}, 3s);
    ours.turn(keys, 3s);
    REQUIRE(ours.last<StopWorkers>()->cause == StopCause::worker_failure);
    ours.say(join_of(1, 2, 1), 4s);
    ours.turn(keys, 4s);
    REQUIRE(ours.last<Placed>()->placement.round == Round{1});
    REQUIRE(ours.last<Placed>()->placement.restart_count == 1);
    REQUIRE(keys.counted_in == 1);
    ours.say(WorkersFailed{Round{1}, {WorkerFailure{.rank = Rank{1}, .exit_code = 3}}}, 5s);
    ours.turn(keys, 5s);
    REQUIRE(ours.last<End>()->verdict.exit_code == 1);
  }
}

TEST_CASE("an address that is no name is published to no worker of a static rendezvous", "[unit][torchrun]") {
  Keys keys;
  Node ours{{.run_id = RunId{"job"}, .address = "10.0.0.2"}};
  keys.map["job/MASTER_ADDR"] = GENERATE(as<std::string>{}, "a\nb", std::string(1 << 20, 'a'), "");
  keys.map["job/MASTER_PORT"] = "29500";
  keys.map["job/torchelastic/assigned_ranks/1"] = "[1, 3, 1, 3]";
  ours.say(join_of(1, 2), 0s);
  const auto told = ours.part.turn(keys, TimePoint{}, UtcTime{});
  REQUIRE_FALSE(told.has_value());
  REQUIRE(told.error().message().starts_with("the address of the workers' store cannot be used: "));
  keys.map["job/MASTER_ADDR"] = "node0";
  ours.turn(keys, 1s);
  REQUIRE(ours.last<Placed>()->placement.master_addr == "node0");
}

TEST_CASE("torchrun takes its place in our static rendezvous", "[unit][mixed]") {
  test::OwnedKeys keys;
  MixedJob job{RunId{"job"}};
  Rendezvous pure;
  const auto hear = [&](const RendezvousEvent& event) { (void)pure.step(event, TimePoint{}); };
  REQUIRE_FALSE(MixedJob::is_static(pure));
  hear(Connected{.peer = Peer{0}, .in_process = true});
  hear(Said{Peer{0}, join_of(0, 3)});
  hear(Connected{Peer{1}, "10.0.0.3", "10.0.0.1"});
  hear(Said{Peer{1}, join_of(2, 3)});
  REQUIRE(MixedJob::is_static(pure));
  REQUIRE_FALSE(job.wanted(keys, pure));
  keys.map["other/torchelastic/role_info/1"] = role;
  REQUIRE_FALSE(job.wanted(keys, pure));
  keys.map["job/torchelastic/role_info/1"] = role;
  REQUIRE(job.wanted(keys, pure));
  (void)job.begin(pure, TimePoint{});

  std::map<std::uint32_t, std::vector<CoordinatorMessage>> heard;
  Duration at{};
  const auto step = [&](const RendezvousEvent& event) {
    at += 1s;
    for (RendezvousAction& action : job.step(event, keys, TimePoint{} + at, UtcTime{})) {
      if (auto* tell = std::get_if<Tell>(&action)) heard[tell->peer.value()].push_back(std::move(tell->message));
    }
  };
  step(Tick{});
  REQUIRE(heard[0] == std::vector<CoordinatorMessage>{HostStore{Round{0}}});
  step(Said{Peer{0}, StoreReady{Round{0}, Port{29500}}});
  step(Tick{});
  REQUIRE(keys.map.at("job/torchelastic/assigned_ranks/1") == "[2, 5, 2, 5]");
  REQUIRE(keys.counted_in == 0);
  for (const auto& [peer, first_rank] : {std::pair{0U, 0}, std::pair{1U, 3}}) {
    const auto* placed = std::get_if<Placed>(&heard[peer].back());
    REQUIRE(placed);
    REQUIRE(placed->placement.first_rank == Rank{first_rank});
    REQUIRE(placed->placement.world_size == 5);
    REQUIRE(placed->placement.master_addr == "10.0.0.1");
    REQUIRE(placed->placement.master_port == Port{29500});
  }
}

TEST_CASE("of what a node of a static rendezvous tells at once the cause is named", "[unit][torchrun]") {
  Keys keys;
  Node ours{{.run_id = RunId{"job"}, .place = MeetingPlace{"node0", Port{29500}}, .address = "10.0.0.2"}};
  keys.map["job/torchelastic/assigned_ranks/1"] = "[1, 3, 1, 3]";
  ours.say(join_of(1, 2, GENERATE(0, 1)), 0s);
  ours.turn(keys, 0s);
  REQUIRE(ours.last<Placed>());
  ours.say(WorkersFailed{Round{0},
                         {WorkerFailure{.rank = Rank{1}, .exit_code = 1, .consequence = true},
                          WorkerFailure{.rank = Rank{2}, .exit_code = 3}}},
           1s);
  ours.turn(keys, 1s);
  const auto* stop = ours.last<StopWorkers>();
  REQUIRE((stop ? stop->reason : ours.last<End>()->verdict.reason).starts_with("rank 2 failed"));
}

TEST_CASE("a static rendezvous in our store keeps nothing of agents that have left", "[unit][mixed]") {
  test::OwnedKeys keys;
  MixedStatic parts{RunId{"job"}};
  for (MixedParts::Id id = 0; id < 10; ++id) {
    parts.enter(id, "10.0.0.2", 1);
    parts.said(id, join_of(1, 2), TimePoint{});
    REQUIRE(parts.held_bytes() == held_bytes(join_of(1, 2)));
    parts.said(id, Leave{.ends_job = false}, TimePoint{});
    const auto told = parts.turn(keys, TimePoint{}, UtcTime{});
    REQUIRE(told->size() == 1);
    REQUIRE(parts.over(id));
    REQUIRE(parts.held_bytes() == 0);
  }
}

TEST_CASE("a coordinator that was asleep ends no static rendezvous by its own join timeout", "[unit][mixed]") {
  test::OwnedKeys keys;
  MixedStatic parts{RunId{"job"}};
  parts.enter(0, "10.0.0.2", 1);
  parts.said(0, join_of(1, 2), TimePoint{});
  REQUIRE(parts.turn(keys, TimePoint{}, UtcTime{})->empty());
  const TimePoint woken = TimePoint{} + 1h;
  parts.slept(woken, 3s);
  REQUIRE(parts.turn(keys, woken, UtcTime{})->empty());
  REQUIRE(parts.turn(keys, woken + 61s, UtcTime{})->size() == 1);
}

}  // namespace torchup
