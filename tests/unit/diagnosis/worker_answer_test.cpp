#include "launcher/core/diagnosis/worker_answer.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "rendezvous/base/worker_channel.hpp"
#include "rendezvous/base/worker_page.hpp"

using namespace torchup;
using nlohmann::json;

namespace {

/// As the hook answers.
const std::string told = R"({"groups":[
{"name":"0","desc":"default_pg","ranks":"0-3","number":5,"seq":6},
{"name":"1","desc":"odd \"desc\"\u001b","ranks":"1-7:2","number":-1,"seq":0}],
"entries":[
{"group":"0","number":4,"p2p":false,"operation":"gloo:barrier","sizes":[],"dtypes":[],
 "created_ns":1795511825217587995,"retired":true},
{"group":"0","number":5,"p2p":false,"operation":"gloo:all_reduce","sizes":[[1024,1024]],"dtypes":["Float"],
 "created_ns":1795511825218265981,"retired":false},
{"group":"1","number":3,"p2p":true,"operation":"nccl:recv 0<-2","sizes":[[2,3],[4]],"dtypes":["Float","Long"],
 "created_ns":1795511825218265990,"retired":false,"duration_ms":1.5}]})";

/// PyTorch 2.15 recorded this for gloo.
const std::string recorded = R"({"groups":[{"name":"0","desc":"default_pg","ranks":"0-1","seq":6}],"entries":[
{"collective_seq_id":5,"input_dtypes":["Float"],"input_sizes":[[3,4]],"is_p2p":false,"op_id":6,"output_dtypes":["Float"],
"output_sizes":[[3,4]],"p2p_seq_id":0,"pg_id":0,"process_group":["0","default_pg"],"profiling_name":"gloo:all_reduce",
"record_id":5,"retired":false,"state":"scheduled","thread_id":"139906387540864","thread_name":"python",
"time_created_ns":1795511825218265981,"time_discovered_completed_ns":0,"time_discovered_started_ns":0,
"timeout_ms":1800000}]})";

WorkerAnswer parsed(const std::string& text) {
  auto answer = parse_worker_answer(text);
  REQUIRE(answer.has_value());
  return *std::move(answer);
}

Collective call_of(const std::string& members) {
  const auto answer = parsed(R"({"entries":[{"group":"0","number":1)" + members + "}]}");
  REQUIRE(answer.entries.size() == 1);
  return answer.entries[0].call;
}

}  // namespace

TEST_CASE("a worker's groups and entries are read", "[unit][worker_answer]") {
  const WorkerAnswer answer = parsed(told);
  REQUIRE(answer.groups.size() == 2);
  CHECK(answer.groups[0].position == GroupPosition{"0", "default_pg", *parse_rank_set("0-3"), 5});
  CHECK(answer.groups[0].sequence == 6);
  CHECK(answer.groups[1].position == GroupPosition{"1", "odd \"desc\"\x1b", *parse_rank_set("1-7:2"), -1});
  REQUIRE(answer.entries.size() == 3);
  CHECK(answer.entries[0].call.finished);
  CHECK(answer.entries[0].call.elements == 0);
  CHECK(answer.entries[0].call.sizes.empty());
  CHECK(answer.entries[1].call == Collective{.group = "0",
                                             .number = 5,
                                             .operation = "gloo:all_reduce",
                                             .sizes = "[1024, 1024]",
                                             .elements = 1024 * 1024,
                                             .dtype = "Float",
                                             .created_ns = 1795511825218265981});
  CHECK_FALSE(answer.entries[1].duration_ms);
  CHECK(answer.entries[2].call == Collective{.group = "1",
                                             .number = 3,
                                             .point_to_point = true,
                                             .peer = Rank{5},
                                             .operation = "nccl:recv",
                                             .sizes = "[[2, 3], [4]]",
                                             .elements = 10,
                                             .dtype = "Float,Long",
                                             .created_ns = 1795511825218265990});
  CHECK(answer.entries[2].duration_ms == 1.5);
  CHECK_FALSE(answer.groups_cut);
  CHECK(answer.problem.empty());
}

TEST_CASE("the recorder's own entries are read, and a group's number from them", "[unit][worker_answer]") {
  const WorkerAnswer answer = parsed(recorded);
  REQUIRE(answer.entries.size() == 1);
  CHECK(answer.entries[0].call == Collective{.group = "0",
                                             .number = 5,
                                             .operation = "gloo:all_reduce",
                                             .sizes = "[3, 4]",
                                             .elements = 12,
                                             .dtype = "Float",
                                             .created_ns = 1795511825218265981});
  CHECK(answer.groups[0].position.number == 5);
}

TEST_CASE("what a former group of the same name has done is nobody's", "[unit][worker_answer]") {
  // As torch 2.15 has it when a program destroys its groups and makes them anew.
  const auto entry = [](const std::string& group, int number, const std::string& operation, const char* more = "") {
    return fmt::format(R"({{"group":"{}","number":{},"operation":"{}"{}}})", group, number, operation, more);
  };
  const auto numbers = [](const WorkerAnswer& answer) {
    std::string text;
    for (const auto& [call, _] : answer.entries) text += fmt::format("{} {}\n", call.group, call.number);
    return text;
  };
  const auto with = [](const std::string& groups, const std::vector<std::string>& entries) {
    return parsed(fmt::format(R"({{"groups":[{}],"entries":[{}]}})", groups, fmt::join(entries, ",")));
  };
  const std::string reduce = "gloo:all_reduce";
  SECTION("numbers begin anew") {
    const auto answer = with(R"({"name":"0","number":2,"seq":2})",
                             {entry("0", 3, reduce), entry("1", 1, reduce), entry("0", 4, reduce),
                              entry("0", 1, reduce), entry("1", 1, reduce), entry("0", 2, reduce)});
    CHECK(numbers(answer) == "0 1\n1 1\n0 2\n");
    CHECK(answer.groups[0].position.number == 2);
  }
  SECTION("the new one has begun nothing") {
    const auto answer = with(R"({"name":"0","number":4,"seq":0})", {entry("0", 3, reduce), entry("0", 4, reduce)});
    CHECK(numbers(answer).empty());
    CHECK(answer.groups[0].position.number == -1);
  }
  SECTION("without its count nobody knows") {
    const auto answer = with(R"({"name":"0","number":4,"seq":-1})", {entry("0", 4, reduce)});
    CHECK(numbers(answer) == "0 4\n");
    CHECK(answer.groups[0].position.number == 4);
  }
  SECTION("two backends count each their own, and point-to-point calls theirs") {
    const char* const p2p = R"(,"p2p":true)";
    const auto answer =
        with("", {entry("0", 500, "nccl:all_reduce"), entry("0", 3, reduce), entry("0", 7, "nccl:send 0->1", p2p),
                  entry("0", 7, "nccl:recv 0<-1", p2p), entry("0", 501, "nccl:all_reduce"), entry("0", 4, reduce)});
    CHECK(answer.entries.size() == 6);
  }
}

TEST_CASE("a worker that could not ask torch says why", "[unit][worker_answer]") {
  const WorkerAnswer answer = parsed(R"({"groups":[{"name":"","desc":"no attribute '_world'"}],"entries":[]})");
  CHECK(answer.problem == "no attribute '_world'");
  CHECK(answer.groups.empty());
}

TEST_CASE("peers are ranks of the world where members are known", "[unit][worker_answer]") {
  const auto peer = [](const std::string& ranks, const std::string& operation) {
    return parsed(
               fmt::format(R"({{"groups":[{{"name":"0","ranks":"{}"}}],"entries":[{{"group":"0","number":1,"p2p":true,)"
                           R"("operation":"{}"}}]}})",
                           ranks, operation))
        .entries[0]
        .call;
  };
  CHECK(peer("0-7", "nccl:send 0->3").peer == Rank{3});
  CHECK(peer("2,4-8:2,11", "nccl:send 0->4").peer == Rank{11});
  CHECK(peer("2,4-8:2,11", "nccl:send 0->2").peer == Rank{6});
  CHECK(peer("2,4-8:2,11", "nccl:send 0->5").peer == std::nullopt);
  CHECK(peer("2,4-8:2,11", "nccl:send 0->99999999999").peer == std::nullopt);
  CHECK(peer("nonsense", "nccl:send 0->1").peer == std::nullopt);
  CHECK(peer("0-7", "nccl:send 0->3").operation == "nccl:send");
  CHECK(peer("0-7", "nccl:coalesced now").operation == "nccl:coalesced now");
  CHECK(peer("0-7", "gloo:recvAnySource").peer == std::nullopt);
}

TEST_CASE("what makes no sense is unknown", "[unit][worker_answer]") {
  CHECK(call_of("") == Collective{.group = "0", .number = 1});
  CHECK(call_of(R"(,"sizes":[[-1]])").elements == -1);
  CHECK(call_of(R"(,"sizes":[[4294967296,4294967296]])").elements == -1);
  CHECK(call_of(R"(,"sizes":[[9223372036854775807],[1]])").elements == -1);
  CHECK(call_of(R"(,"sizes":[[9223372036854775807]])").elements == 9223372036854775807);
  CHECK(call_of(R"(,"sizes":[[18446744073709551615]])").elements == -1);
  CHECK(call_of(R"(,"sizes":[3])").elements == -1);
  CHECK(call_of(R"(,"sizes":"[3]")").sizes.empty());
  CHECK(call_of(R"(,"sizes":[[1.5]])").elements == -1);
  CHECK(call_of(R"(,"sizes":[[]])").elements == 1);
  CHECK(call_of(R"(,"sizes":[[]])").sizes == "[]");
  CHECK(call_of(R"(,"dtypes":["Float",3])").dtype.empty());
  CHECK(call_of(R"(,"dtypes":["Float","Float"])").dtype == "Float");
  CHECK(call_of(R"(,"created_ns":-5)").created_ns == 0);
  CHECK(call_of(R"(,"created_ns":1e30)").created_ns == 0);
  CHECK_FALSE(call_of(R"(,"retired":1)").finished);
  CHECK_FALSE(call_of(R"(,"p2p":"true")").point_to_point);
  CHECK(call_of(R"(,"operation":null)").operation.empty());
  for (const char* entry :
       {R"({"group":"0"})", R"({"number":1})", R"({"group":"","number":1})", R"({"group":0,"number":1})",
        R"({"group":"0","number":-1})", R"({"group":"0","number":1.0})", R"({"group":[],"number":1})",
        R"({"group":["0"],"number":"1"})", "7", "[]", "null"}) {
    CHECK(parsed(fmt::format(R"({{"entries":[{}]}})", entry)).entries.empty());
  }
  for (const char* duration : {"-1", "1e999", "\"1\"", "null"}) {
    const auto answer =
        parse_worker_answer(fmt::format(R"({{"entries":[{{"group":"0","number":1,"duration_ms":{}}}]}})", duration));
    if (answer) CHECK_FALSE(answer->entries[0].duration_ms);
  }
  CHECK(parsed("{}") == WorkerAnswer{});
  CHECK(parsed(R"({"groups":7,"entries":{"a":1}})") == WorkerAnswer{});
}

TEST_CASE("an answer that is none is refused", "[unit][worker_answer]") {
  for (const char* text : {"", "[]", "7", "{", "{}x", "{\"a\":\"\xff\"}", "\xff\xff", "\x1b[2J"}) {
    CHECK(parse_worker_answer(text).error().code == make_error_code(errc::bad_value));
  }
  CHECK(parse_worker_answer(std::string(65, '[')).error().code == make_error_code(errc::limit_exceeded));
  std::string longest = "{}";
  longest.resize(worker_answer_bytes, ' ');
  CHECK(parse_worker_answer(longest).has_value());
  CHECK(parse_worker_answer(longest + " ").error().code == make_error_code(errc::limit_exceeded));
}

TEST_CASE("an answer has its limits", "[unit][worker_answer]") {
  const auto list = [](std::size_t count, auto item) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ",") + item(i);
    return text;
  };
  SECTION("entries, of which the last count") {
    const auto entries = [&](std::size_t count) {
      return parsed("{\"entries\":[" +
                    list(count, [](std::size_t i) { return fmt::format(R"({{"group":"0","number":{}}})", i); }) + "]}")
          .entries;
    };
    CHECK(entries(looked_entries_max).front().call.number == 0);
    CHECK(entries(looked_entries_max + 1).size() == looked_entries_max);
    CHECK(entries(looked_entries_max + 1).front().call.number == 1);
  }
  SECTION("groups, of which the first count") {
    const auto answer = [&](std::size_t count) {
      return parsed("{\"groups\":[" + list(count, [](std::size_t i) { return fmt::format(R"({{"name":"{}"}})", i); }) +
                    "]}");
    };
    CHECK_FALSE(answer(looked_groups_max).groups_cut);
    CHECK(answer(looked_groups_max + 1).groups_cut);
    CHECK(answer(looked_groups_max + 1).groups.size() == looked_groups_max);
  }
  SECTION("texts") {
    const std::string many(1000, 'x');
    const auto answer = parsed(fmt::format(
        R"({{"groups":[{{"name":"{0}","desc":"{0}"}}],"entries":[{{"group":"{0}","number":1,"operation":"{0}",)"
        R"("dtypes":["{0}"],"sizes":[[{1}]]}}]}})",
        many, list(500, [](std::size_t) { return std::string{"1"}; })));
    CHECK(answer.groups[0].position.name.size() == look_group_bytes_max);
    CHECK(answer.groups[0].position.description.size() == look_group_bytes_max);
    CHECK(answer.entries[0].call.group == answer.groups[0].position.name);
    CHECK(answer.entries[0].call.operation.size() == look_operation_bytes_max);
    CHECK(answer.entries[0].call.dtype.size() == look_dtype_bytes_max);
    CHECK(answer.entries[0].call.sizes.size() == look_sizes_bytes_max);
    CHECK(answer.entries[0].call.elements == 1);
  }
}

TEST_CASE("no answer, however spoilt, leaves the limits", "[unit][worker_answer]") {
  std::mt19937 random{11};
  int good = 0;
  for (int round = 0; round < 2000; ++round) {
    json value = json::parse(random() % 2 ? told : recorded);
    // Each change makes something else of a value somewhere in it.
    for (auto i = random() % 6; i > 0; --i) {
      json* at = &value;
      while (at->is_structured() && !at->empty() && random() % 5 != 0) {
        auto next = at->begin();
        std::advance(next, random() % at->size());
        at = &*next;
      }
      const json odd[] = {-1,
                          1e300,
                          "",
                          nullptr,
                          true,
                          json::array(),
                          json::object(),
                          18446744073709551615U,
                          std::string(300, '\x1b'),
                          json::array({json::array({-3})})};
      *at = odd[random() % std::size(odd)];
    }
    const auto answer = parse_worker_answer(value.dump());
    if (!answer) continue;
    ++good;
    for (const AnsweredGroup& group : answer->groups) {
      REQUIRE_FALSE(group.position.name.empty());
      REQUIRE(group.position.number >= -1);
    }
    for (const AnsweredEntry& entry : answer->entries) {
      REQUIRE(entry.call.number >= 0);
      REQUIRE(entry.call.elements >= -1);
      REQUIRE(entry.call.created_ns >= 0);
      REQUIRE(entry.call.sizes.size() <= look_sizes_bytes_max);
    }
  }
  CHECK(good > 1000);
}
