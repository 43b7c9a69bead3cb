// What an agent is told of groups, as the agent reads it.
#include "worker_runtime/group/look_answer.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "launcher/core/diagnosis/worker_answer.hpp"
#include "rendezvous/base/worker_channel.hpp"
#include "rendezvous/base/worker_page.hpp"
#include "worker_runtime/group/recorder_tail.hpp"

using namespace torchup;
using nlohmann::json;

namespace {

constexpr std::size_t plenty = worker_answer_bytes;

/// As LibTorch writes it.
json recorded(const std::string& group, std::int64_t number, bool retired = true) {
  return {{"record_id", number},
          {"pg_id", 0},
          {"process_group", {group, "default_pg"}},
          {"thread_name", R"(a }],"b" \ {"collective_seq_id":7)"},
          {"thread_id", "1"},
          {"collective_seq_id", number},
          {"p2p_seq_id", 0},
          {"op_id", number},
          {"profiling_name", "gloo:all_reduce"},
          {"time_created_ns", 1000 + number},
          {"input_sizes", {{2, 3}, {4}}},
          {"input_dtypes", {"Float", "Long"}},
          {"output_sizes", {{2, 3}, {4}}},
          {"output_dtypes", {"Float", "Long"}},
          {"state", retired ? "completed" : "scheduled"},
          {"time_discovered_started_ns", 0},
          {"time_discovered_completed_ns", 0},
          {"retired", retired},
          {"timeout_ms", 1800000},
          {"is_p2p", false}};
}

std::string recorder(const std::vector<json>& entries) {
  const json text = {{"version", "2.10"},
                     {"comm_lib_version", ""},
                     {"entries", entries},
                     {"pg_config", {{"0", {{"name", "0"}, {"desc", "default_pg"}, {"ranks", "[0, 1]"}}}}},
                     {"pg_status", {{"0", {{"last_enqueued_collective", "7"}}}}}};
  return text.dump();
}

AnsweringGroup group_of(std::string name) {
  return {.name = std::move(name), .description = "", .global_ranks = {0, 1}, .sequence = 10'000};
}

WorkerAnswer answer(const std::vector<AnsweringGroup>& groups, const std::vector<std::string>& recorders,
                    std::size_t bytes_max = plenty) {
  const std::string text = look_answer(groups, recorders, bytes_max);
  CAPTURE(text);
  REQUIRE(text.size() <= bytes_max);
  const auto parsed = parse_worker_answer(text);
  REQUIRE(parsed.has_value());
  return *parsed;
}

std::vector<std::int64_t> numbers(const WorkerAnswer& answer) {
  std::vector<std::int64_t> found;
  for (const AnsweredEntry& entry : answer.entries) found.push_back(entry.call.number);
  return found;
}

}  // namespace

TEST_CASE("an agent hears of groups and calls", "[unit][look_answer]") {
  AnsweringGroup all = group_of("0");
  all.description = "default_pg";
  all.global_ranks = {0, 1, 2, 3, 8, 12, 16};
  all.sequence = 9;
  const auto told = answer({all}, {recorder({recorded("0", 6), recorded("0", 7, false)})});
  REQUIRE(told.problem.empty());
  REQUIRE(told.groups.size() == 1);
  CHECK(told.groups[0].position ==
        GroupPosition{.name = "0", .description = "default_pg", .ranks = *parse_rank_set("0-3,8-16:4"), .number = 7});
  CHECK(told.groups[0].sequence == 9);
  REQUIRE(numbers(told) == std::vector<std::int64_t>{6, 7});
  CHECK(told.entries[0].call.finished);
  CHECK(told.entries[1].call == Collective{.group = "0",
                                           .number = 7,
                                           .operation = "gloo:all_reduce",
                                           .sizes = "[[2, 3], [4]]",
                                           .elements = 10,
                                           .dtype = "Float,Long",
                                           .created_ns = 1007});
}

TEST_CASE("what a device took is told where it is known", "[unit][look_answer]") {
  json entry = recorded("0", 1);
  entry["duration_ms"] = 2.5;
  const auto told = answer({group_of("0")}, {recorder({recorded("0", 0), entry})});
  CHECK_FALSE(told.entries[0].duration_ms);
  CHECK(told.entries[1].duration_ms == 2.5);
}

TEST_CASE("a group's number is that of its newest collective", "[unit][look_answer]") {
  json send = recorded("1.2", 3);
  send["is_p2p"] = true;
  send["p2p_seq_id"] = 41;
  send["profiling_name"] = "nccl:send 0->1";
  std::vector<json> entries{recorded("1.2", 3)};
  for (int number = 0; number < 300; ++number) entries.push_back(recorded("0", number));
  entries.push_back(send);
  const auto told = answer({group_of("0"), group_of("1.2"), group_of("3")}, {recorder(entries)});
  REQUIRE(told.groups.size() == 3);
  CHECK(told.groups[0].position.number == 299);
  CHECK(told.groups[1].position.number == 3);  // behind more calls than are told
  CHECK(told.groups[2].position.number == -1);
  REQUIRE(told.entries.size() == looked_entries_max);
  CHECK(told.entries.back().call.number == 41);
  CHECK(told.entries.back().call.point_to_point);
  CHECK(told.entries.back().call.peer == Rank{1});
}

TEST_CASE("what another group has left under the same name is not told", "[unit][look_answer]") {
  AnsweringGroup group = group_of("0");
  const std::vector<std::string> recorders{recorder({recorded("0", 6, false), recorded("gone", 7, false)})};
  group.since_ns = 1006;
  CHECK(numbers(answer({group}, recorders)) == std::vector<std::int64_t>{6});
  group.since_ns = 1007;
  const auto told = answer({group}, recorders);
  CHECK(told.entries.empty());
  CHECK(told.groups[0].position.number == -1);
}

TEST_CASE("of two recorders calls are told in their order", "[unit][look_answer]") {
  const auto told = answer({group_of("0"), group_of("1")}, {recorder({recorded("0", 1), recorded("0", 4)}),
                                                            recorder({recorded("1", 2), recorded("1", 3)})});
  CHECK(numbers(told) == std::vector<std::int64_t>{1, 2, 3, 4});
}

TEST_CASE("an answer is cut to its limit, groups last", "[unit][look_answer]") {
  std::vector<json> entries;
  for (int number = 0; number < 200; ++number) entries.push_back(recorded("0", number));
  const auto whole = answer({group_of("0")}, {recorder(entries)});
  REQUIRE(whole.entries.size() == 200);
  const auto some = answer({group_of("0")}, {recorder(entries)}, 2000);
  REQUIRE(some.groups.size() == 1);
  REQUIRE(some.entries.size() > 1);
  REQUIRE(some.entries.size() < 200);
  CHECK(some.entries.back().call.number == 199);
  CHECK(answer({group_of("0")}, {recorder(entries)}, 30).groups.empty());

  const std::vector<AnsweringGroup> many(2000, group_of("0"));
  const auto cut = answer(many, {});
  CHECK(cut.groups.size() == looked_groups_max);
  CHECK(cut.groups_cut);
}

TEST_CASE("a group of more stretches than an agent reads has no members", "[unit][look_answer]") {
  AnsweringGroup group = group_of("0");
  for (int rank = 0; rank < 4000; ++rank) group.global_ranks.push_back(rank * rank);
  group.global_ranks.resize(2000);
  CHECK(answer({group}, {}).groups[0].position.ranks.empty());
}

TEST_CASE("a recorder's text is read as far as it goes", "[unit][look_answer]") {
  const std::string text = recorder({recorded("0", 6), recorded("0", 7)});
  REQUIRE(recorder_tail(text, 10).size() == 2);
  REQUIRE(recorder_tail(text, 1).size() == 1);
  REQUIRE(recorder_tail(text, 1)[0].number == 7);
  REQUIRE(recorder_tail("", 10).empty());
  REQUIRE(recorder_tail(recorder({}), 10).empty());
  for (std::size_t end = 0; end < text.size(); ++end) {
    for (const RecordedCall& call : recorder_tail(std::string_view{text}.substr(0, end), 10)) {
      CHECK((call.number == 6 || call.number == 7));
      CHECK(call.group == "0");
    }
  }
  REQUIRE(recorder_tail(R"({"collective_seq_id":x,"is_p2p":,"process_group":[)", 10).empty());
}

TEST_CASE("who cannot tell says why", "[unit][look_answer]") {
  const auto told = parse_worker_answer(look_problem("the \"recorder\"\nis \xff gone" + std::string(9000, '!')));
  REQUIRE(told.has_value());
  CHECK(told->groups.empty());
  CHECK(told->problem.starts_with("the \"recorder\"\nis "));
}
