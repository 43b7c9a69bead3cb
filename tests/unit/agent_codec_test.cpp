#include "rendezvous/core/agent_codec.hpp"

#include <catch2/catch.hpp>
#include <random>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

WorkerFailure failure() {
  return {.rank = Rank{5},
          .local_rank = LocalRank{1},
          .exit_code = -9,
          .pid = 70000,
          .host = "a",
          .time_us = 1700000000000000,
          .message = "line\nline",
          .error_file = "/tmp/error.json"};
}

Join full_join() {
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
                .join_timeout = 5s,
                .last_call = 0s,
                .lease = 1500ms,
                .rank_order = RankOrder::hostlist,
                .same_world = SameWorld::fail,
                .hostlist = "n[1-4]"};
  join.facts = {{"torch", "2.15.0"}, {"program", ""}};
  join.former = Placement{.round = Round{6}, .restart_count = 2};
  return join;
}

std::vector<AgentFrame> agent_frames() {
  Resume resume{.join = full_join(), .stage = Resume::Stage::failed};
  resume.placement =
      Placement{.round = Round{1}, .group_rank = GroupRank{2}, .master_addr = "fd00::1", .master_port = Port{65535}};
  resume.store = StoreReady{Round{1}, Port{7}};
  resume.failed = {Round{1}, {failure()}, false};
  return {Hello{.has_token = true, .nonce = {1, 2, 3}, .run_id = RunId{"job1"}},
          Proof{{9, 8, 7}},
          KeepAlive{1ull << 40},
          full_join(),
          StoreReady{Round{1ll << 40}, Port{29500}},
          WorkersFailed{Round{2}, {failure(), failure()}, true},
          WorkersSucceeded{Round{3}},
          Leave{false, 143, "terminated", {failure()}, 10, true},
          resume};
}

std::vector<CoordinatorFrame> coordinator_frames() {
  const Placement placement{Round{4}, GroupRank{1}, 2, Rank{8}, 16, Rank{4}, 8, "node-a", Port{4000}, 2, 5};
  return {Challenge{1, {4, 5}, {6}},
          Welcome{1, true},
          KeepAliveAnswer{77},
          Refused{67, "why"},
          HostStore{Round{4}},
          Placed{placement},
          StopWorkers{Round{4}, StopCause::fenced, "silent"},
          End{{1, "reason", {failure()}, 2, true}},
          Waiting{"1 of 2 nodes"}};
}

template <class Frame>
Result<std::optional<Frame>> take(std::string_view& input) {
  if constexpr (std::is_same_v<Frame, AgentFrame>)
    return take_agent_frame(input);
  else
    return take_coordinator_frame(input);
}

template <class Frame>
void check_all(const std::vector<Frame>& frames) {
  REQUIRE(frames.size() == std::variant_size_v<Frame>);
  for (const Frame& frame : frames) {
    INFO("alternative " << frame.index());
    const std::string bytes = encode(frame);
    std::string_view whole = bytes;
    const auto read = take<Frame>(whole);
    REQUIRE(read.has_value());
    REQUIRE(read->has_value());
    REQUIRE(**read == frame);
    REQUIRE(whole.empty());
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      std::string_view part = std::string_view{bytes}.substr(0, cut);
      const auto nothing = take<Frame>(part);
      REQUIRE(nothing.has_value());
      REQUIRE_FALSE(nothing->has_value());
      REQUIRE(part.size() == cut);  // nothing is taken from half a frame
    }
    // A frame that ends within its fields is refused, whatever the field.
    for (std::size_t length = 1; length + 4 < bytes.size(); ++length) {
      std::string shorter = bytes.substr(0, 4 + length);
      shorter[0] = static_cast<char>(length & 0xff);
      shorter[1] = static_cast<char>(length >> 8 & 0xff);
      std::string_view input = shorter;
      REQUIRE(take<Frame>(input).has_error());
    }
    // A newer peer's further fields are passed over.
    std::string longer = bytes + "more";
    const std::size_t length = longer.size() - 4;
    longer[0] = static_cast<char>(length & 0xff);
    longer[1] = static_cast<char>(length >> 8 & 0xff);
    std::string_view input = longer;
    REQUIRE(**take<Frame>(input) == frame);
  }
}

}  // namespace

TEST_CASE("every frame comes back as it was, and no part of one passes for it", "[unit][agent_codec]") {
  check_all(agent_frames());
  check_all(coordinator_frames());
}

TEST_CASE("a frame's bytes are those of PROTOCOL.md", "[unit][agent_codec]") {
  REQUIRE(encode(AgentFrame{StoreReady{Round{258}, Port{0x7352}}}) == std::string("\x0b\x00\x00\x00\x11"
                                                                                  "\x02\x01\x00\x00\x00\x00\x00\x00"
                                                                                  "\x52\x73",
                                                                                  15));
  REQUIRE(encode(CoordinatorFrame{Waiting{"ab"}}) == std::string("\x07\x00\x00\x00\x54"
                                                                 "\x02\x00\x00\x00"
                                                                 "ab",
                                                                 11));
}

TEST_CASE("frames follow each other in one input", "[unit][agent_codec]") {
  const std::string bytes = encode(AgentFrame{KeepAlive{1}}) + encode(AgentFrame{KeepAlive{2}}) + "\x01";
  std::string_view input = bytes;
  REQUIRE(**take_agent_frame(input) == AgentFrame{KeepAlive{1}});
  REQUIRE(**take_agent_frame(input) == AgentFrame{KeepAlive{2}});
  REQUIRE_FALSE(take_agent_frame(input)->has_value());
  REQUIRE(input.size() == 1);
}

TEST_CASE("limits are met by their numbers alone", "[unit][agent_codec]") {
  const auto error_of = [](std::string bytes, std::size_t limit = frame_bytes_max) {
    std::string_view input = bytes;
    const auto read = take_agent_frame(input, limit);
    REQUIRE(read.has_error());
    return read.error().code;
  };
  REQUIRE(error_of(std::string("\x01\x00\x10\x00", 4)) == make_error_code(errc::limit_exceeded));  // 1 MiB and one
  std::string_view whole_limit{"\x00\x00\x10\x00", 4};
  REQUIRE_FALSE(take_agent_frame(whole_limit)->has_value());
  REQUIRE(error_of(std::string("\xff\xff\xff\xff", 4)) == make_error_code(errc::limit_exceeded));
  REQUIRE(error_of(std::string("\x00\x00\x00\x00", 4)) == make_error_code(errc::bad_frame));
  REQUIRE(error_of(std::string("\x01\x00\x00\x00\x63", 5)) == make_error_code(errc::bad_frame));  // no such type
  REQUIRE(error_of(encode(AgentFrame{full_join()}), 32) == make_error_code(errc::limit_exceeded));

  Join join = full_join();
  join.addresses.assign(list_items_max, "a");
  std::string at_limit = encode(AgentFrame{join});
  std::string_view input = at_limit;
  REQUIRE(take_agent_frame(input).has_value());
  join.addresses.emplace_back("a");
  REQUIRE(error_of(encode(AgentFrame{join})) == make_error_code(errc::limit_exceeded));
}

TEST_CASE("what cannot be is refused", "[unit][agent_codec]") {
  const auto refused = [](auto change) {
    Join join = full_join();
    change(join);
    const std::string bytes = encode(AgentFrame{join});
    std::string_view input = bytes;
    return take_agent_frame(input).has_error();
  };
  REQUIRE_FALSE(refused([](Join&) {}));
  REQUIRE(refused([](Join& join) { join.local_world_size = 0; }));
  REQUIRE(refused([](Join& join) { join.terms.min_nodes = 0; }));
  REQUIRE(refused([](Join& join) { join.terms.max_nodes = 1; }));
  REQUIRE(refused([](Join& join) { join.terms.nodes_multiple_of = 0; }));
  REQUIRE(refused([](Join& join) { join.terms.lease = -1s; }));
  REQUIRE(refused([](Join& join) { join.terms.rank_order = static_cast<RankOrder>(3); }));
  REQUIRE(refused([](Join& join) { join.group_rank = GroupRank{-1}; }));
  REQUIRE(refused([](Join& join) { join.host = "a\x1b[2J"; }));
  REQUIRE(refused([](Join& join) { join.addresses = {"a\n"}; }));
}

TEST_CASE("a writer cuts what is too long, so that no frame outgrows its limit", "[unit][agent_codec]") {
  WorkerFailure loud = failure();
  loud.message.assign(1 << 20, 'x');
  loud.error_file.assign(1 << 20, 'x');
  const std::string bytes =
      encode(CoordinatorFrame{End{{1, std::string(1 << 20, 'r'), std::vector(1000, loud), 15, false}}});
  REQUIRE(bytes.size() <= frame_bytes_max);
  std::string_view input = bytes;
  const auto read = take_coordinator_frame(input);
  REQUIRE(read.has_value());
  REQUIRE(std::get<End>(**read).verdict.failures.size() == failures_told_max);
}

TEST_CASE("random bytes never crash the reader", "[unit][agent_codec]") {
  std::mt19937 random{7};
  int understood = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = encode(agent_frames()[random() % 9]);
    for (int flips = 0; flips < 3; ++flips) bytes[4 + random() % (bytes.size() - 4)] = static_cast<char>(random());
    std::string_view input = bytes;
    const auto read = take_agent_frame(input);
    if (read.has_value() && read->has_value()) ++understood;
  }
  REQUIRE(understood > 1000);
}
