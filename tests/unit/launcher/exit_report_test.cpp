#include "launcher/core/record/exit_report.hpp"

#include <catch2/catch.hpp>

#include "launcher/core/record/error_file.hpp"
#include "rendezvous/core/text/utc_text.hpp"

using namespace torchup;

/// The expected texts were made by ChildFailedError.format_msg of torch 2.15.
namespace {

constexpr std::int64_t noon = 1'795'234'093'000'000;

std::string utc_time(std::int64_t utc_us) {
  std::string text = utc_text(utc_us);
  text.resize(19);
  text[10] = '_';
  return text;
}

WorkerFailure failure(int rank, int local_rank, std::int64_t pid, int exit_code, std::int64_t time_us = noon) {
  WorkerFailure made;
  made.rank = Rank{rank};
  made.local_rank = LocalRank{local_rank};
  made.exit_code = exit_code;
  made.pid = pid;
  made.host = "node1.example";
  made.time_us = time_us;
  return made;
}

}  // namespace

TEST_CASE("the report of one failure", "[unit][report]") {
  CHECK(exit_report("x", {failure(0, 0, 7, 3)}, utc_time) == R"(
============================================================
x FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_04:08:13
  host      : node1.example
  rank      : 0 (local_rank: 0)
  exitcode  : 3 (pid: 7) 
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================)");
}

TEST_CASE("the report of several failures names the earliest as root cause", "[unit][report]") {
  CHECK(exit_report("train.py",
                    {failure(5, 1, 20601, -15), failure(4, 0, 20602, 7, noon - 3'000'000), failure(6, 2, 9, -40),
                     failure(7, 3, 10, 138)},
                    utc_time) == R"(
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[0]:
  time      : 2026-11-21_04:08:13
  host      : node1.example
  rank      : 5 (local_rank: 1)
  exitcode  : -15 (pid: 20601)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 20601
[2]:
  time      : 2026-11-21_04:08:13
  host      : node1.example
  rank      : 6 (local_rank: 2)
  exitcode  : -40 (pid: 9) 
  error_file: <N/A>
  traceback : Signal 40 (<N/A>) received by PID 9
[3]:
  time      : 2026-11-21_04:08:13
  host      : node1.example
  rank      : 7 (local_rank: 3)
  exitcode  : 138 (pid: 10) 
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[1]:
  time      : 2026-11-21_04:08:10
  host      : node1.example
  rank      : 4 (local_rank: 0)
  exitcode  : 7 (pid: 20602) 
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================)");
}

TEST_CASE("the report shows the traceback of an error file, indented", "[unit][report]") {
  const auto error = parse_error_file(
      R"({"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack":)"
      R"("Traceback (most recent call last):\n  File \"/x/train.py\", line 3, in main\nValueError: b\u00e4d\n",)"
      R"("timestamp": "1795234093"}}})");
  REQUIRE(error.has_value());
  WorkerFailure raised = failure(1, 1, 11, 1);
  raised.message = error->traceback;
  raised.error_file = "/tmp/err.json";
  CHECK(exit_report("train.py", {raised, failure(0, 0, 12, -9)}, utc_time) == R"(
===================================================
train.py FAILED
---------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_04:08:13
  host      : node1.example
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 12)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 12
---------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_04:08:13
  host      : node1.example
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 11) 
  error_file: /tmp/err.json
  traceback : Traceback (most recent call last):
    File "/x/train.py", line 3, in main
  ValueError: bäd
  
===================================================)");
}

TEST_CASE("the rulers are as wide as the longest line, counted in characters", "[unit][report]") {
  WorkerFailure wide = failure(1, 1, 5, 1, 5'000'000);
  for (int count = 0; count < 45; ++count) wide.message += "ä";
  wide.error_file = "/tmp/err.json";
  const std::string report = exit_report("s.py", {failure(0, 0, 29499, -9), wide}, utc_time);
  CHECK(report.starts_with("\n" + std::string(59, '=') + "\ns.py FAILED\n" + std::string(59, '-') + "\n"));
  CHECK(exit_report("s.py", {failure(0, 0, 29499, -9)}, utc_time).starts_with("\n" + std::string(54, '=') + "\n"));
}

TEST_CASE("the root cause is the earliest in whole seconds, then the first noticed", "[unit][report]") {
  CHECK(root_cause({failure(0, 0, 1, 1, noon + 900'000), failure(1, 1, 1, 1, noon)}) == 0);
  CHECK(root_cause({failure(0, 0, 1, 1, noon + 1'000'000), failure(1, 1, 1, 1, noon)}) == 1);
}

TEST_CASE("the launcher's exit code", "[unit][report]") {
  WorkerFailure killed;
  killed.exit_code = -9;
  killed.time_us = 2'000'000;
  WorkerFailure first;
  first.exit_code = 7;
  first.time_us = 1'000'000;
  const Verdict verdict{.exit_code = 1, .failures = {killed, first}};
  CHECK(launcher_exit_code(verdict, false) == 1);
  CHECK(launcher_exit_code(verdict, true) == 7);  // the root cause's, not the first in the list
  CHECK(launcher_exit_code(Verdict{.exit_code = 1, .failures = {killed}}, true) == 137);
  first.exit_code = 0;  // it failed by something else than its exit code
  CHECK(launcher_exit_code(Verdict{.exit_code = 1, .failures = {first}}, true) == 1);
  CHECK(launcher_exit_code(Verdict{.exit_code = 143}, true) == 143);
}

TEST_CASE("of several nodes whose lines are merged one reports", "[unit][report]") {
  const Verdict failed{.exit_code = 1, .failures = {failure(3, 1, 7, 3)}};
  for (const bool first : {true, false}) {
    CHECK_FALSE(words_of_bystander(failed, 1, {"node1.example", "node0", first}));
    CHECK(words_of_bystander(failed, 1, {"node0", "node0", first}) ==
          "exit code 1: rank 3 failed with exit code 3 on node1.example, which has the report");
  }
  const Verdict stopped{.exit_code = 143, .reason = "got SIGTERM"};
  CHECK_FALSE(words_of_bystander(stopped, 143, {"node0", "node0", true}));
  CHECK(words_of_bystander(stopped, 143, {"node1", "node0", false}) ==
        "exit code 143: got SIGTERM; node0 has the report");
  CHECK(words_of_bystander(stopped, 143, {"node1", "", false}) == "exit code 143: got SIGTERM; node 0 has the report");
  CHECK(words_of_bystander(stopped, 143, {"node1", "", false, true}) == "exit code 143: got SIGTERM");
}

TEST_CASE("who is said to have the report has it", "[unit][report]") {
  const Verdict failed{.exit_code = 1, .failures = {failure(3, 1, 7, 3)}, .reporter = "node2"};
  const Verdict stopped{.exit_code = 143, .reason = "got SIGTERM", .reporter = "node2"};
  for (const bool first : {true, false}) {
    CHECK_FALSE(words_of_bystander(failed, 1, {"node2", "node0", first}));
    CHECK_FALSE(words_of_bystander(stopped, 143, {"node2", "node0", first}));
    CHECK(words_of_bystander(failed, 1, {"node0", "node0", first}) ==
          "exit code 1: rank 3 failed with exit code 3 on node1.example; node2 has the report");
    CHECK(words_of_bystander(stopped, 143, {"node0", "node0", first}) ==
          "exit code 143: got SIGTERM; node2 has the report");
  }
}

TEST_CASE("who leaves has the report where it is told so, unless the job may go on without it", "[unit][report]") {
  const Teller first{"node0", "node0", true}, second{"node1", "node0", false};
  const auto leaves = [](Teller teller) {
    teller.left = true;
    return teller;
  };
  Verdict stopped{.exit_code = 143, .reason = "got SIGTERM"};
  CHECK(has_report(stopped, first));
  CHECK_FALSE(has_report(stopped, second));
  for (const Teller& teller : {leaves(first), leaves(second)}) {
    CHECK_FALSE(has_report(stopped, teller));
    CHECK(words_of_bystander(stopped, 143, teller) == "exit code 143: got SIGTERM");
  }
  stopped.reporter = "node1";
  for (const Teller& teller : {second, leaves(second)}) {
    CHECK(has_report(stopped, teller));
    CHECK_FALSE(words_of_bystander(stopped, 143, teller));
  }
  for (const Teller& teller : {first, leaves(first)}) CHECK_FALSE(has_report(stopped, teller));
}

TEST_CASE("signals and the exit codes that stand for them", "[unit][report]") {
  for (int number = 1; number < 32; ++number) CHECK(signal_number(signal_name(number)) == number);
  CHECK(signal_number("TERM") == 15);
  CHECK(signal_number("34") == 34);
  CHECK_FALSE(signal_number("SIGFOO"));
  CHECK(shell_code(15) == 143);
  CHECK(signal_of_shell_code(143) == 15);
  CHECK_FALSE(signal_of_shell_code(128));
  CHECK_FALSE(signal_of_shell_code(75));
  CHECK_FALSE(signal_of_shell_code(255));
}
