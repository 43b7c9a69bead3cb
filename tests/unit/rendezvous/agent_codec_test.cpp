#include "rendezvous/core/link/agent_codec.hpp"

#include <catch2/catch.hpp>
#include <random>

#include "rendezvous/core/text/names.hpp"

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
  join.former = Placement{.round = Round{6}, .master_port = Port{29500}, .restart_count = 2};
  return join;
}

std::vector<AgentFrame> agent_frames() {
  Resume resume{.join = full_join(), .stage = Resume::Stage::failed};
  resume.placement = Placement{Round{1}, GroupRank{2}, 3, Rank{16}, 24, Rank{8}, 16, "fd00::1", Port{65535}, 1, 0};
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
          HostStore{Round{4}, {"10.0.0.7", "fd00::/64"}},
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
  REQUIRE(error_of(std::string("\x01\x00\x00\x00\x00", 5)) ==
          make_error_code(errc::bad_frame));  // the other direction's
  REQUIRE(error_of(std::string("\x01\x00\x00\x00\x40", 5)) == make_error_code(errc::bad_frame));
  REQUIRE(error_of(encode(AgentFrame{full_join()}), 32) == make_error_code(errc::limit_exceeded));
}

TEST_CASE("a number is read at its limits and refused beyond them", "[unit][agent_codec]") {
  const auto check = [](auto frame, const char* what, const auto& set, std::int64_t smallest, std::int64_t largest) {
    INFO(what);
    const auto read_with = [&](std::int64_t value) {
      auto changed = frame;
      set(changed, value);
      using Frame =
          std::conditional_t<std::is_constructible_v<AgentFrame, decltype(frame)>, AgentFrame, CoordinatorFrame>;
      const std::string bytes = encode(Frame{changed});
      std::string_view input = bytes;
      const auto read = take<Frame>(input);
      if (read && **read != Frame{changed}) FAIL("another value was read");
      return read.has_value() ? std::string{} : read.error().context;
    };
    REQUIRE(read_with(smallest) == "");
    REQUIRE(read_with(largest) == "");
    REQUIRE(read_with(smallest - 1).starts_with(what));
    REQUIRE(read_with(largest + 1).starts_with(what));
  };
  // Counts and rounds are bent by the writer, so beyond their limits they are put into the bytes.
  const auto check_bytes = [](const auto& frame, const char* what, auto at_limit, auto beyond) {
    INFO(what);
    const auto octets = [](auto number) {
      std::string bytes;
      for (std::size_t i = 0; i < sizeof number; ++i) bytes.push_back(static_cast<char>(number >> (8 * i) & 0xff));
      return bytes;
    };
    std::string bytes = encode(frame);
    std::string_view input = bytes;
    REQUIRE(take<std::decay_t<decltype(frame)>>(input).has_value());
    const std::size_t at = bytes.find(octets(at_limit));
    REQUIRE(at != std::string::npos);
    bytes.replace(at, sizeof beyond, octets(beyond));
    input = bytes;
    REQUIRE(take<std::decay_t<decltype(frame)>>(input).error().context.starts_with(what));
  };
  const auto to_int = [](std::int64_t value) { return static_cast<int>(value); };

  Join join = full_join();
  join.terms.max_nodes = nodes_max;
  join.terms.min_nodes = join.terms.nodes_multiple_of = 1;
  check(
      join, "the local world size", [&](Join& j, auto n) { j.local_world_size = to_int(n); }, 1, local_workers_max);
  check(
      join, "a group rank", [&](Join& j, auto n) { j.group_rank = GroupRank{to_int(n)}; }, 0, nodes_max - 1);
  check(
      join, "min nodes", [&](Join& j, auto n) { j.terms.min_nodes = to_int(n); }, 1, nodes_max);
  check(
      join, "max nodes", [&](Join& j, auto n) { j.terms.max_nodes = to_int(n); }, 1, nodes_max);
  check(
      join, "the divisor", [&](Join& j, auto n) { j.terms.nodes_multiple_of = to_int(n); }, 1, nodes_max);
  check(
      join, "max restarts", [&](Join& j, auto n) { j.terms.max_restarts = to_int(n); }, 0, restarts_max);

  check_bytes(AgentFrame{StoreReady{Round{round_max}, Port{1}}}, "a round", round_max, round_max + 1);
  check_bytes(AgentFrame{StoreReady{Round{round_max}, Port{1}}}, "a round", round_max, std::int64_t{-1});
  check(
      StoreReady{Round{0}, Port{1}}, "a port",
      [](StoreReady& m, auto n) { m.port = Port{static_cast<std::uint16_t>(n == 65536 ? 0 : n)}; }, 1, 65535);
  check(
      Leave{}, "an exit code", [&](Leave& m, auto n) { m.exit_code = to_int(n); }, 0, exit_code_max);
  check(
      Leave{}, "a signal", [&](Leave& m, auto n) { m.stop_signal = to_int(n); }, 0, signal_max);
  check(
      End{}, "an exit code", [&](End& m, auto n) { m.verdict.exit_code = to_int(n); }, 0, exit_code_max);
  check(
      End{}, "a signal", [&](End& m, auto n) { m.verdict.stop_signal = to_int(n); }, 0, signal_max);
  check(
      Refused{}, "an exit code", [&](Refused& m, auto n) { m.exit_code = to_int(n); }, 0, exit_code_max);
  const WorkersFailed failed{Round{2}, {failure()}, true};
  check(
      failed, "a rank", [&](WorkersFailed& m, auto n) { m.failures[0].rank = Rank{to_int(n)}; }, 0, world_size_max - 1);
  check(
      failed, "a local rank", [&](WorkersFailed& m, auto n) { m.failures[0].local_rank = LocalRank{to_int(n)}; }, 0,
      local_workers_max - 1);

  const Placed placed{{Round{4}, GroupRank{0}, 1, Rank{0}, nodes_max, Rank{0}, 1, "a", Port{4000}, 0, 0}};
  const auto place = [&](const char* what, auto member, std::int64_t smallest, std::int64_t largest) {
    check(
        placed, what, [&](Placed& m, auto n) { member(m.placement, to_int(n)); }, smallest, largest);
  };
  place(
      "the group world size", [](Placement& p, int n) { p.group_world_size = n; }, 1, nodes_max);
  place(
      "the role world size", [](Placement& p, int n) { p.role_world_size = n; }, 1, nodes_max);
  place(
      "the world size", [](Placement& p, int n) { p.world_size = n; }, 1, world_size_max);
  Placed counted = placed;
  counted.placement.restart_count = restarts_max;
  counted.placement.membership_changes = membership_changes_max;
  const CoordinatorFrame at_limits{counted};
  check_bytes(at_limits, "the restart count", restarts_max, restarts_max + 1);
  check_bytes(at_limits, "the restart count", restarts_max, -1);
  check_bytes(at_limits, "the count of membership changes", membership_changes_max, membership_changes_max + 1);
  check_bytes(at_limits, "the count of membership changes", membership_changes_max, -1);
  // A place lies within its round.
  place(
      "the group world size", [](Placement& p, int n) { p.group_rank = GroupRank{2}, p.group_world_size = n; }, 3,
      nodes_max);
  place(
      "the world size", [](Placement& p, int n) { p.first_rank = Rank{7}, p.world_size = n; }, 8, world_size_max);
  place(
      "the role world size", [](Placement& p, int n) { p.first_role_rank = Rank{7}, p.role_world_size = n; }, 8,
      nodes_max);
}

TEST_CASE("texts and lists are read at their limits and refused beyond them", "[unit][agent_codec]") {
  // Writers cut, so what is one too long is written with another structure's limit.
  const auto count_at = [](std::string bytes, std::string_view of, std::uint32_t before, std::uint32_t after) {
    const auto number = [](std::uint32_t value) {
      std::string text;
      for (int i = 0; i < 4; ++i) text.push_back(static_cast<char>(value >> (8 * i) & 0xff));
      return text;
    };
    const std::size_t at = bytes.find(number(before) + std::string{of});
    REQUIRE(at != std::string::npos);
    bytes.replace(at, 4, number(after));
    return bytes;
  };
  const auto error_of = [](const std::string& bytes) {
    std::string_view input = bytes;
    const auto read = take_agent_frame(input);
    return read ? std::string{} : read.error().context;
  };
  Join join = full_join();
  join.host.assign(name_bytes_max, 'h');
  join.addresses.assign(addresses_max, "AAAA");
  join.facts.assign(facts_max, {"FFFF", "v"});
  join.terms.hostlist.assign(text_bytes_max, 'L');
  const std::string whole = encode(AgentFrame{join});
  REQUIRE(error_of(whole) == "");
  REQUIRE(error_of(count_at(whole, "hhhh", name_bytes_max, name_bytes_max + 1)) ==
          "a host has 257 bytes, where 256 are allowed");
  REQUIRE(error_of(count_at(whole, std::string("\x04\0\0\0", 4) + "AAAA", addresses_max, addresses_max + 1)) ==
          "a node's addresses has 65 items, where 64 are allowed");
  REQUIRE(error_of(count_at(whole, "LLLL", text_bytes_max, text_bytes_max + 1)) ==
          "a host list has 65537 bytes, where 65536 are allowed");
  const std::string fact_at_front("\x0d\0\0\0\x04\0\0\0FFFF", 12);
  REQUIRE(error_of(count_at(whole, fact_at_front, facts_max, facts_max + 1)) ==
          "a list of facts has 257 items, where 256 are allowed");

  WorkerFailure loud = failure();
  loud.message.assign(message_bytes_max, 'M');
  loud.error_file.assign(path_bytes_max, 'P');
  const std::string failed = encode(AgentFrame{WorkersFailed{Round{0}, std::vector(failures_told_max, loud), true}});
  REQUIRE(error_of(failed) == "");
  REQUIRE(
      error_of(count_at(failed, "MMMM", message_bytes_max, message_bytes_max + 1)).starts_with("a failure's message"));
  REQUIRE(error_of(count_at(failed, "PPPP", path_bytes_max, path_bytes_max + 1)).starts_with("an error file's path"));
  REQUIRE(error_of(count_at(failed, "", failures_told_max, failures_told_max + 1)).starts_with("a list of failures"));
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
  REQUIRE(refused([](Join& join) { join.former = Placement{.group_world_size = 0, .master_port = Port{1}}; }));

  const auto resume_refused = [](auto change) {
    Resume resume = std::get<Resume>(agent_frames().back());
    change(resume);
    const std::string bytes = encode(AgentFrame{resume});
    std::string_view input = bytes;
    return take_agent_frame(input).has_error();
  };
  using Stage = Resume::Stage;
  REQUIRE_FALSE(resume_refused([](Resume&) {}));
  REQUIRE(resume_refused([](Resume& resume) { resume.placement.reset(); }));
  REQUIRE(resume_refused([](Resume& resume) { resume.stage = Stage::ready; }));
  REQUIRE_FALSE(resume_refused([](Resume& resume) { resume.stage = Stage::ready, resume.placement.reset(); }));
  REQUIRE(resume_refused([](Resume& resume) { resume.stage = Stage::running, resume.placement.reset(); }));
  REQUIRE(resume_refused([](Resume& resume) { resume.stage = Stage::succeeded, resume.placement.reset(); }));
  REQUIRE(resume_refused([](Resume& resume) { resume.failed.round = Round{0}; }));
  REQUIRE_FALSE(resume_refused([](Resume& resume) { resume.placement->world_size = 24; }));
  REQUIRE(resume_refused([](Resume& resume) { resume.placement->world_size = 23; }));  // it has 8 workers from rank 16
}

TEST_CASE("a name is short, UTF-8, and without control characters", "[unit][agent_codec]") {
  for (const char* good : {"", "a", "gpu-01.example.org", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    REQUIRE(why_no_name(good).empty());
    REQUIRE(as_name(good) == good);
  }
  for (const auto& [bad, clean] :
       std::vector<std::pair<std::string, std::string>>{{"a\x1b[2J", "a?[2J"},
                                                        {"a\n", "a?"},
                                                        {"\x7f", "?"},
                                                        {"\xc2\x9b", "??"},  // a control character of two bytes
                                                        {"\xff", "?"},
                                                        {"\xc3", "?"},
                                                        {"\xc0\xaf", "??"},  // longer than needed
                                                        {"\xe0\x80\xaf", "???"},
                                                        {"\xed\xa0\x80", "???"},  // half a pair
                                                        {"\xf4\x90\x80\x80", "????"}}) {
    REQUIRE_FALSE(why_no_name(bad).empty());
    REQUIRE(as_name(bad) == clean);
    Join join = full_join();
    join.host = bad;
    const std::string bytes = encode(AgentFrame{join});
    std::string_view input = bytes;
    REQUIRE(std::get<Join>(**take_agent_frame(input)).host == clean);
  }
  REQUIRE(why_no_name(std::string(name_bytes_max, 'a')).empty());
  REQUIRE_FALSE(why_no_name(std::string(name_bytes_max + 1, 'a')).empty());
  REQUIRE(as_name(std::string(name_bytes_max - 1, 'a') + "\xc3\xa9") == std::string(name_bytes_max - 1, 'a'));
  REQUIRE(cut_text("a\xc3\xa9", 2) == "a");
  REQUIRE(cut_text("a\xc3\xa9", 3) == "a\xc3\xa9");

  std::string frame = encode(AgentFrame{full_join()});
  frame.replace(frame.find("trainer"), 7, "tr\niner");
  std::string_view input = frame;
  REQUIRE(take_agent_frame(input).error().context ==
          "a role cannot be used: it has control characters or is not UTF-8");
}

TEST_CASE("what a worker's own file may say is bent into its range", "[unit][agent_codec]") {
  WorkerFailure odd = failure();
  odd.time_us = -1;
  odd.pid = std::int64_t{1} << 40;
  odd.exit_code = -1000;
  const std::string bytes = encode(AgentFrame{WorkersFailed{Round{2}, {odd}, true}});
  std::string_view input = bytes;
  const auto read = std::get<WorkersFailed>(**take_agent_frame(input)).failures.at(0);
  REQUIRE(read.time_us == 0);
  REQUIRE(read.pid == pid_max);
  REQUIRE(read.exit_code == -signal_max);
}

TEST_CASE("counts and rounds that went on from a stranger's largest are bent into their ranges",
          "[unit][agent_codec]") {
  Placed placed{{.master_port = Port{1}}};
  placed.placement.round = Round{round_max + 1};
  placed.placement.restart_count = restarts_max + 1;
  placed.placement.membership_changes = membership_changes_max + 1;
  const std::string bytes = encode(CoordinatorFrame{placed});
  std::string_view input = bytes;
  const auto read = std::get<Placed>(**take_coordinator_frame(input)).placement;
  REQUIRE(read.round == Round{round_max});
  REQUIRE(read.restart_count == restarts_max);
  REQUIRE(read.membership_changes == membership_changes_max);
}

TEST_CASE("durations are bent into 0 to a year", "[unit][agent_codec]") {
  Join join = full_join();
  join.terms.lease = -1s;
  join.terms.join_timeout = 24h * 10000;
  const std::string bytes = encode(AgentFrame{join});
  std::string_view input = bytes;
  const auto read = std::get<Join>(**take_agent_frame(input)).terms;
  REQUIRE(read.lease == 0s);
  REQUIRE(read.join_timeout == duration_max);
}

TEST_CASE("a writer cuts what is too long, so that no frame outgrows its limit", "[unit][agent_codec]") {
  WorkerFailure loud = failure();
  loud.host.assign(2 * name_bytes_max, 'h');
  loud.message.assign(2 * message_bytes_max, 'x');
  loud.error_file.assign(2 * path_bytes_max, 'x');
  Join join = full_join();
  join.host = join.role = loud.host;
  join.node = NodeId{loud.host};
  join.addresses.assign(2 * addresses_max, loud.host);
  join.facts.assign(2 * facts_max, {loud.host, loud.host});
  join.terms.hostlist.assign(2 * text_bytes_max, 'h');
  Resume resume = std::get<Resume>(agent_frames().back());
  resume.join = join;
  resume.failed.failures.assign(2 * failures_told_max, loud);
  const std::string bytes = encode(AgentFrame{resume});
  REQUIRE(bytes.size() <= frame_bytes_max);
  std::string_view input = bytes;
  const auto read = take_agent_frame(input);
  REQUIRE(read.has_value());
  REQUIRE(std::get<Resume>(**read).failed.failures.size() == failures_told_max);

  const Verdict verdict{1, std::string(1 << 20, 'r'), std::vector(2 * failures_told_max, loud), 15, false};
  const std::string end = encode(CoordinatorFrame{End{verdict}});
  REQUIRE(end.size() <= frame_bytes_max);
  input = end;
  REQUIRE(take_coordinator_frame(input).has_value());
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
