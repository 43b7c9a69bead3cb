// The limits of the agents' frames, at each and beyond.
#include "rendezvous/core/link/agent_codec.hpp"

#include <catch2/catch.hpp>

#include "agent_frames.hpp"
#include "rendezvous/core/text/names.hpp"

using namespace torchup;
using namespace torchup::frames_in_full;
using namespace std::chrono_literals;

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
      join, "the exit code without", [&](Join& j, auto n) { j.needed_code = to_int(n); }, 1, exit_code_max);
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

TEST_CASE("a part of an answer or of news is read at its limit and refused beyond it", "[unit][agent_codec]") {
  const std::string largest(diagnosis_part_bytes_max, '\xff');
  const auto check = [](const auto& frame, std::size_t count_at) {
    std::string bytes = encode(frame);
    std::string_view input = bytes;
    const auto read = take<std::decay_t<decltype(frame)>>(input);
    REQUIRE(read.has_value());
    REQUIRE(**read == frame);
    REQUIRE(bytes.substr(count_at, 4) == std::string("\0\0\x04\0", 4));
    bytes[count_at] = 1;
    input = bytes;
    REQUIRE(take<std::decay_t<decltype(frame)>>(input).error().code == make_error_code(errc::limit_exceeded));
  };
  check(AgentFrame{Examined{1, largest, true}}, 4 + 1 + 8);
  check(AgentFrame{Arrivals{largest}}, 4 + 1);
  check(CoordinatorFrame{HangTold{largest, true}}, 4 + 1);
}

TEST_CASE("what is said for those who look at a job is read at its limit and refused beyond it",
          "[unit][agent_codec]") {
  const auto check = [](const AgentFrame& frame, std::string_view mark, std::size_t bytes_max, const char* what) {
    std::string bytes = encode(frame);
    std::string_view input = bytes;
    const auto read = take_agent_frame(input);
    REQUIRE(read.has_value());
    REQUIRE(**read == frame);
    const std::size_t at = bytes.find(mark) - 4;
    REQUIRE(bytes[at] == static_cast<char>(bytes_max & 0xff));
    bytes[at] = static_cast<char>((bytes_max + 1) & 0xff);
    input = bytes;
    const auto beyond = take_agent_frame(input);
    REQUIRE(beyond.error().code == make_error_code(errc::limit_exceeded));
    REQUIRE(beyond.error().context.starts_with(what));
  };
  const auto full = [](std::size_t bytes_max) { return std::string(bytes_max, 'M'); };
  check(NodeEvent{full(node_event_bytes_max)}, "MMMM", node_event_bytes_max, "an event");
  check(Ask{.target = full(ask_target_bytes_max)}, "MMMM", ask_target_bytes_max, "a target");
  check(Ask{.body = full(ask_body_bytes_max)}, "MMMM", ask_body_bytes_max, "the body of a request");
  check(Answer{.body = full(answer_body_bytes_max)}, "MMMM", answer_body_bytes_max, "the body of an answer");
  check(KeepAlive{1, {}, NodeReport{.ranks = full(local_workers_max)}}, "MMMM", std::size_t{local_workers_max},
        "the states of ranks");
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
