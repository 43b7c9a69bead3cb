#include "rendezvous/core/link/agent_codec.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "agent_frames.hpp"
#include "rendezvous/core/text/names.hpp"

using namespace torchup;
using namespace torchup::frames_in_full;
using namespace std::chrono_literals;

namespace {

/// How long the frame of an older peer may be, which ends where this one goes on with what has been added since: behind
/// its length, and where the whole is so long.
std::vector<std::size_t> older_lengths(const AgentFrame& frame, std::size_t whole) {
  if (const auto* const alive = std::get_if<KeepAlive>(&frame)) {
    KeepAlive former = *alive;
    former.node.reset();
    const std::size_t seen = sizeof(std::uint64_t);
    return {1 + sizeof(std::uint64_t), encode(AgentFrame{former}).size() - sizeof(std::uint32_t) - 1 - seen, whole - seen};
  }
  if (std::holds_alternative<Leave>(frame)) return {whole - 2, whole - 1};
  if (std::holds_alternative<StoreReady>(frame)) return {whole - sizeof(StoreKey)};
  const auto* const join = std::get_if<Join>(&frame);
  if (!join) return {};
  const std::size_t without_code = whole - sizeof(std::int32_t);
  const std::size_t without_needed = without_code - 1;
  return {without_needed - sizeof(std::uint32_t) - join->unfit.size(), without_needed, without_code};
}
std::vector<std::size_t> older_lengths(const CoordinatorFrame& frame, std::size_t whole) {
  const std::size_t number = sizeof(std::uint64_t);
  if (std::holds_alternative<Welcome>(frame)) return {whole - number};
  if (std::holds_alternative<KeepAliveAnswer>(frame)) {
    return {1 + number, 1 + 2 * number, 1 + 3 * number, 1 + 4 * number, 2 + 4 * number};
  }
  if (std::holds_alternative<StopWorkers>(frame)) return {whole - 2, whole - 1};
  return std::holds_alternative<Placed>(frame) ? std::vector{whole - 1} : std::vector<std::size_t>{};
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
    // A frame that ends within its fields is refused, whatever the field; but an older peer's has fewer.
    const auto older = older_lengths(frame, bytes.size() - 4);
    for (std::size_t length = 1; length + 4 < bytes.size(); ++length) {
      if (std::ranges::find(older, length) != older.end()) continue;
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
    const auto passed_over = take<Frame>(input);
    REQUIRE(passed_over.has_value());
    REQUIRE(**passed_over == frame);
  }
}

}  // namespace

TEST_CASE("every frame comes back as it was, and no part of one passes for it", "[unit][agent_codec]") {
  check_all(agent_frames());
  check_all(coordinator_frames());
}

TEST_CASE("a frame's bytes are those of PROTOCOL.md", "[unit][agent_codec]") {
  REQUIRE(encode(AgentFrame{StoreReady{Round{258}, Port{0x7352}}}) == std::string("\x1b\x00\x00\x00\x11"
                                                                                  "\x02\x01\x00\x00\x00\x00\x00\x00"
                                                                                  "\x52\x73",
                                                                                  15) +
                                                                          std::string(16, '\0'));
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

TEST_CASE("random bytes never crash the reader", "[unit][agent_codec]") {
  std::mt19937 random{7};
  const auto frames = agent_frames();
  int understood = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = encode(frames[random() % frames.size()]);
    for (int flips = 0; flips < 3; ++flips) bytes[4 + random() % (bytes.size() - 4)] = static_cast<char>(random());
    std::string_view input = bytes;
    const auto read = take_agent_frame(input);
    if (read.has_value() && read->has_value()) ++understood;
  }
  REQUIRE(understood > 1000);
}
