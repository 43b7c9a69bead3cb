#pragma once

#include <chrono>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "rendezvous/core/link/agent_codec.hpp"

/// Frames of all kinds with all their fields set.
namespace torchup::frames_in_full {

inline WorkerFailure failure() {
  return {.rank = Rank{5},
          .local_rank = LocalRank{1},
          .exit_code = -9,
          .pid = 70000,
          .host = "a",
          .time_us = 1700000000000000,
          .message = "line\nline",
          .error_file = "/tmp/error.json"};
}

inline Join full_join() {
  Join join;
  join.node = NodeId{"a_1_0"};
  join.host = "a";
  join.addresses = {"10.0.0.1", "fd00::1"};
  join.address_demanded = true;
  join.local_world_size = 8;
  join.role = "trainer";
  join.group_rank = GroupRank{3};
  join.terms = {.min_nodes = 2,
                .max_nodes = 4,
                .nodes_multiple_of = 2,
                .max_restarts = 3,
                .join_timeout = std::chrono::seconds{5},
                .last_call = Duration::zero(),
                .lease = std::chrono::milliseconds{1500},
                .rank_order = RankOrder::hostlist,
                .same_world = SameWorld::fail,
                .hostlist = "n[1-4]",
                .hang_timeout = {.mode = HangTimeout::Mode::given,
                                 .silence = std::chrono::seconds{90},
                                 .start = std::chrono::seconds{600}},
                .on_hang = OnHang::restart,
                .straggler_window = std::chrono::seconds{20},
                .own_run_id = true};
  join.facts = {{"torch", "2.15.0"}, {"program", ""}};
  join.former = Placement{.round = Round{6}, .master_port = Port{29500}, .restart_count = 2};
  join.unfit = "GPU 3 is lost (Xid 79)";
  join.needed = true;
  join.needed_code = 2;
  return join;
}

inline std::vector<AgentFrame> agent_frames() {
  Resume resume{.join = full_join(), .stage = Resume::Stage::failed};
  resume.placement = Placement{Round{1}, GroupRank{2}, 3, Rank{16}, 24, Rank{8}, 16, "fd00::1", Port{65535}, 1, 0};
  resume.store = StoreReady{Round{1}, Port{7}};
  resume.failed = {Round{1}, {failure()}, false};
  return {Hello{.has_token = true, .nonce = {1, 2, 3}, .run_id = RunId{"job1"}},
          KeepAlive{1ull << 40,
                    ProgressReport{.watched = true,
                                   .progressed = true,
                                   .ending = true,
                                   .silence = std::chrono::seconds{64},
                                   .median_gap = std::chrono::milliseconds{142},
                                   .longest_gap = std::chrono::seconds{7}},
                    NodeReport{.ranks = "rw-h",
                               .steps = StepReport{41190, 41200, 3100, std::chrono::milliseconds{250}},
                               .beats = 1ull << 33,
                               .spent = {1, 2, 3, 4, 5, 6, 7, 8, 1ll << 40}},
                    1ull << 39},
          full_join(),
          StoreReady{Round{1ll << 40}, Port{29500}, {8, 9}},
          WorkersFailed{Round{2}, {failure(), failure()}, true},
          WorkersSucceeded{Round{3}},
          Leave{false, 143, "terminated", {failure()}, 10, true, true, true},
          Examined{6, std::string("\x00 any \xff bytes", 14), false},
          AskLook{},
          Arrivals{std::string("\x80\x00", 2)},
          NodeEvent{R"({"event":"warning"})", 3},
          Ask{7, true, "user ada (uid 1000)", "POST", "/v1/jobs/a/stop", R"({"save":true})"},
          Answer{1ull << 40, 202, "application/json", "{}", 99},
          Moved{1ll << 40, {"b:29400"}},
          resume};
}

inline std::vector<CoordinatorFrame> coordinator_frames() {
  const Placement placement{Round{4}, GroupRank{1}, 2, Rank{8}, 16, Rank{4}, 8, "node-a", Port{4000}, 2, 5};
  return {Welcome{1, true, 1ll << 41},
          KeepAliveAnswer{77, std::int64_t{1} << 50, std::int64_t{1} << 60, std::chrono::seconds{3}, false, 1ll << 41},
          Refused{67, "why"},
          HostStore{Round{4}, {"10.0.0.7", "fd00::/64"}},
          Placed{placement},
          StopWorkers{Round{4}, StopCause::fenced, "silent", true, true},
          End{{1, "reason", {failure()}, 2, true, true, "b", true}},
          Waiting{"1 of 2 nodes"},
          Examine{6, true, true},
          HangTold{std::string("\xc3\x00", 2), false},
          Ask{8, false, "token from 10.0.0.7", "GET", "/v1/jobs/a/ranks/3/log?offset=0", ""},
          Answer{9, 404, "text/plain", std::string("\x00 any \xff", 7), 1ull << 50},
          Busy{},
          Elsewhere{1ll << 40, {"[fd00::7]:4711", "c:1"}}};
}

template <class Frame>
Result<std::optional<Frame>> take(std::string_view& input) {
  if constexpr (std::is_same_v<Frame, AgentFrame>)
    return take_agent_frame(input);
  else
    return take_coordinator_frame(input);
}

}  // namespace torchup::frames_in_full
