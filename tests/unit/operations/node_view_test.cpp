#include "launcher/core/ops/node_view.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

struct Life {
  LaunchConfig config;
  RunRecord record;
  std::int64_t at = 1;

  Life() {
    config.terms.min_nodes = 1;
    config.terms.max_nodes = 2;
    config.local_world_size = 2;
  }
  void happened(EventBody body) {
    record.apply({{at, at}, std::move(body)});
    ++at;
  }
  void begin_round() {
    happened(event::JobStarted{});
    event::RoundCompleted round;
    round.placement = {.round = Round{3}, .group_rank = GroupRank{1}, .first_rank = Rank{2}, .world_size = 4};
    round.placement.master_addr = "node0";
    round.placement.master_port = Port{29};
    happened(round);
    happened(event::AttemptStarted{"attempt_0", "", 0});
  }
};

}  // namespace

TEST_CASE("a node whose coordinator is out of reach tells of itself, and for how long", "[unit][operations]") {
  Life life;
  life.begin_round();
  const JobView view = node_view(life.record, life.config, {.host = "here", .out_of_reach = 12s + 600ms});
  CHECK(view.phase == "cut off");
  CHECK(view.last == "the coordinator has been out of reach for 12 s: this node tells of itself alone");
  CHECK(view.world_size == 4);
  CHECK(view.master == "node0:29");
  REQUIRE(view.nodes.size() == 1);
  CHECK(view.nodes[0].node == "here");
  CHECK(view.nodes[0].state == "seated");
  CHECK(view.nodes[0].first_rank == Rank{2});
  CHECK(view.nodes[0].group_rank == GroupRank{1});

  life.happened(event::AttemptEnded{"over"});
  const JobView idle = node_view(life.record, life.config, {.host = "here"});
  CHECK(idle.world_size == 0);
  CHECK(idle.nodes[0].state == "ready");
  CHECK_FALSE(idle.nodes[0].first_rank);
}

TEST_CASE("among torchrun's agents a node tells of itself, and a job that has ended of its end", "[unit][operations]") {
  Life life;
  CHECK(node_view(life.record, life.config, {.torchruns = true}).phase == "gathering");
  life.begin_round();
  CHECK(node_view(life.record, life.config, {.torchruns = true}).phase == "running");
  Verdict verdict;
  verdict.exit_code = 3;
  verdict.reason = "rank 1 failed";
  life.happened(event::JobEnded{verdict});
  const JobView ended = node_view(life.record, life.config, {});
  CHECK(ended.phase == "ended");
  CHECK(ended.verdict == verdict);
  CHECK(ended.last == "rank 1 failed");
}

TEST_CASE("failures are told by their node, and what all hear by the first one", "[unit][operations]") {
  event::WorkerExited exited;
  exited.end = WorkerEnd::failed;
  CHECK(is_told_to_coordinator(exited, false));
  exited.end = WorkerEnd::terminated;
  CHECK_FALSE(is_told_to_coordinator(exited, true));
  CHECK(is_told_to_coordinator(event::Warning{"x"}, false));
  CHECK(is_told_to_coordinator(event::IncidentRecorded{}, false));
  CHECK(is_told_to_coordinator(event::WorkerHung{}, false));
  CHECK(is_told_to_coordinator(event::HangFound{}, true));
  CHECK_FALSE(is_told_to_coordinator(event::HangFound{}, false));
  CHECK_FALSE(is_told_to_coordinator(event::WorkerStarted{}, true));
  CHECK(is_noted_by_coordinator(event::MembershipChanged{"a node has come"}));
  CHECK_FALSE(is_noted_by_coordinator(event::OrderReceived{}));
}
