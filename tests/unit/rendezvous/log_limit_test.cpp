#include "rendezvous/core/text/log_limit.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

const TimePoint t0{};

std::vector<std::string> texts(const std::vector<LogLine>& lines) {
  std::vector<std::string> list;
  for (const LogLine& line : lines) list.push_back(line.text);
  return list;
}

LogLine about(const std::string& job, const std::string& text) {
  LogLine line{text};
  line.job = job;
  return line;
}

}  // namespace

TEST_CASE("a flood of one message becomes its first lines and a count", "[unit][log_limit]") {
  LogLimit limit{{.window = 60s, .lines_max = 3}};
  for (int i = 0; i < 3; ++i) {
    REQUIRE(limit.step({LogLevel::warning, "closed", fmt::format("closed {}", i)}, t0).size() == 1);
  }
  for (int i = 3; i < 1000; ++i) {
    REQUIRE(limit.step({LogLevel::warning, "closed", fmt::format("closed {}", i)}, t0 + 1s).empty());
  }
  REQUIRE(texts(limit.step({"something else"}, t0 + 2s)) == std::vector<std::string>{"something else"});
  REQUIRE(limit.deadline() == t0 + 60s);
  REQUIRE(limit.due(t0 + 60s - 1ns).empty());
  const auto counted = limit.due(t0 + 60s);
  REQUIRE(texts(counted) ==
          std::vector<std::string>{"… 997 more like this in the last 60 s, the last of them: closed 999"});
  REQUIRE(counted[0].level == LogLevel::warning);
  SECTION("after which it may be said again") {
    REQUIRE(limit.step({LogLevel::warning, "closed", "closed again"}, t0 + 60s).size() == 1);
  }
  SECTION("once") { REQUIRE(limit.due(t0 + 120s).empty()); }
}

TEST_CASE("a count that is due stands before the next line", "[unit][log_limit]") {
  LogLimit limit{{.window = 60s, .lines_max = 1}};
  (void)limit.step({"a"}, t0);
  (void)limit.step({"a"}, t0 + 1s);
  REQUIRE(texts(limit.step({"b"}, t0 + 61s)) ==
          std::vector<std::string>{"… 1 more like this in the last 61 s, the last of them: a", "b"});
}

TEST_CASE("one source gets one line of a message in a window, others theirs", "[unit][log_limit]") {
  LogLimit limit{{.window = 60s, .lines_max = 3}};
  const auto from = [&](const std::string& address, TimePoint now) {
    return limit.step(LogLine{LogLevel::warning, "closed", "closed " + address}.because_of(address), now).size();
  };
  REQUIRE(from("10.0.0.1", t0) == 1);
  REQUIRE(from("10.0.0.1", t0 + 59s) == 0);
  REQUIRE(from("10.0.0.2", t0 + 59s) == 1);
  REQUIRE(from("10.0.0.3", t0 + 59s) == 1);
  REQUIRE(from("10.0.0.4", t0 + 59s) == 0);
  REQUIRE(from("10.0.0.1", t0 + 60s) == 2);  // the count, and its line
}

TEST_CASE("a job has more lines than a stranger, and no other job's", "[unit][log_limit]") {
  LogLimit limit{{.lines_max = 1, .job_lines_max = 2}};
  REQUIRE(limit.step(about("a", "joined"), t0).size() == 1);
  REQUIRE(limit.step(about("a", "joined"), t0).size() == 1);
  REQUIRE(limit.step(about("a", "joined"), t0).empty());
  REQUIRE(limit.step(about("b", "joined"), t0).size() == 1);
}

TEST_CASE("a flood of ever new messages is one message in the end", "[unit][log_limit]") {
  LogLimit limit{{.lines_max = 2, .messages_max = 10}};
  std::size_t told = 0;
  for (int i = 0; i < 10'000; ++i) told += limit.step({fmt::format("message {}", i)}, t0).size();
  REQUIRE(told <= 12);
  REQUIRE(told >= 10);
  REQUIRE(limit.due(t0 + 60s).size() == 1);
}

TEST_CASE("all lines together have a limit", "[unit][log_limit]") {
  LogLimit limit{{.lines_max = 10, .all_lines_max = 20}};
  std::size_t told = 0;
  for (int i = 0; i < 100; ++i) told += limit.step({fmt::format("message {}", i)}, t0).size();
  REQUIRE(told == 20);
  REQUIRE(limit.step({"later"}, t0 + 60s).size() == 80 + 1);
}

TEST_CASE("what was kept back is counted at the end", "[unit][log_limit]") {
  LogLimit limit{{.lines_max = 1}};
  (void)limit.step({"a"}, t0);
  REQUIRE(limit.rest(t0).empty());
  (void)limit.step({"a"}, t0 + 1s);
  (void)limit.step({"a"}, t0 + 2s);
  REQUIRE(limit.rest(t0 + 3s).size() == 1);
}
