#include "launcher/core/record/file_timers.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

namespace {

std::string line(const char* pid, const char* expires, const char* signal) {
  return std::string{R"({"version": 1, "pid": )"} + pid + R"(, "scope_id": "train.py#17", "expiration_time": )" +
         expires + R"(, "signal": )" + signal + "}";
}

void set(FileTimers& timers, std::int64_t pid, const char* scope, double expires_s, int signal) {
  REQUIRE(timers.apply({pid, scope, expires_s, signal}).has_value());
}

}  // namespace

TEST_CASE("a worker's line is a timer", "[unit][file_timers]") {
  REQUIRE(parse_timer_request(line("4242", "1795234093.25", "9")).value() ==
          TimerRequest{4242, "train.py#17", 1795234093.25, 9});
  REQUIRE(parse_timer_request(line("4242", "-1", "0")).value() == TimerRequest{4242, "train.py#17", -1, 0});
  REQUIRE(parse_timer_request(line("4242", "5", "-3"))->signal == 0);
}

TEST_CASE("anything else is refused", "[unit][file_timers]") {
  for (const std::string& text :
       {std::string{""}, std::string{"{}"}, std::string{"[1]"}, std::string{"9"}, line("\"1\"", "1", "9"),
        line("1", "1", "9"), line("0", "1", "9"), line("-1", "1", "9"), line("-4242", "1", "9"),
        line("42", "null", "9"), line("42", "1", "65"), line("42", "1", "9.5"), line("42", "1", "9").substr(1),
        std::string{R"({"version": 2, "pid": 42})"}}) {
    INFO(text);
    REQUIRE(parse_timer_request(text).has_error());
  }
  const std::string padding(timer_line_bytes_max - line("42", "1", "9").size(), ' ');
  REQUIRE(parse_timer_request(line("42", "1", "9") + padding).has_value());
  REQUIRE(parse_timer_request(line("42", "1", "9") + padding + " ").error().code ==
          make_error_code(errc::limit_exceeded));
}

TEST_CASE("a timer fires once, unless it is set anew or let go", "[unit][file_timers]") {
  FileTimers timers;
  REQUIRE_FALSE(timers.next_s());
  set(timers, 5, "a", 10, 9);
  set(timers, 5, "a", 20, 15);
  REQUIRE(timers.next_s() == 20.0);
  REQUIRE(timers.due(19.9).empty());
  REQUIRE(timers.due(20) == std::vector<FileTimers::Expired>{{5, "a", 15, 0}});
  REQUIRE(timers.due(99).empty());
  set(timers, 5, "a", 10, 9);
  set(timers, 5, "a", -1, 0);
  REQUIRE_FALSE(timers.next_s());
}

TEST_CASE("of one process the earliest timer with a signal counts", "[unit][file_timers]") {
  FileTimers timers;
  set(timers, 5, "told only", 1, 0);
  set(timers, 5, "second", 3, 15);
  set(timers, 5, "first", 2, 9);
  set(timers, 5, "not yet", 50, 2);
  set(timers, 6, "other process, told only", 2, 0);
  set(timers, 7, "other process, not yet", 50, 9);
  REQUIRE(timers.due(4) == std::vector<FileTimers::Expired>{{5, "first", 9, 2}, {6, "", 0, 0}});
  REQUIRE(timers.next_s() == 50.0);
  REQUIRE(timers.due(60) == std::vector<FileTimers::Expired>{{7, "other process, not yet", 9, 10}});
}

TEST_CASE("timers of a process that is gone go", "[unit][file_timers]") {
  FileTimers timers;
  set(timers, 5, "a", 1, 9);
  set(timers, 55, "a", 2, 9);
  timers.forget(5);
  REQUIRE(timers.next_s() == 2.0);
  timers.clear();
  REQUIRE_FALSE(timers.next_s());
}

TEST_CASE("there is a limit to timers", "[unit][file_timers]") {
  FileTimers timers;
  for (std::size_t i = 0; i < timers_max; ++i) timers.apply({7, std::to_string(i), 1, 9}).value();
  REQUIRE(timers.apply({7, "one more", 1, 9}).error().code == make_error_code(errc::limit_exceeded));
  REQUIRE(timers.apply({7, "3", 2, 9}).has_value());
}
