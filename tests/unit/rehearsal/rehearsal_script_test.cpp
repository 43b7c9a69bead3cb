#include "launcher/core/rehearsal/rehearsal_script.hpp"

#include <catch2/catch.hpp>
#include <csignal>

using namespace torchup;
using namespace std::chrono_literals;
using When = ScriptStatement::When;

namespace {

RehearsalScript script_of(std::string_view text) {
  auto script = parse_rehearsal(text);
  if (!script) FAIL(script.error().message());
  return *std::move(script);
}

std::string mistake(std::string_view text) {
  const auto script = parse_rehearsal(text);
  return script ? "none" : script.error().message();
}

std::string repeated(std::string_view line, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += line;
  return text;
}

}  // namespace

TEST_CASE("each action is read", "[unit][rehearsal]") {
  const auto script = script_of(
      "at 1.5s kill rank=1\n"
      "at step 20 kill rank=random signal=SEGV; at 500ms stop rank=3 for=2m\n"
      "every 10s slow rank=0 by=30% for=5s times=4\n"
      "at 3s kill node=1 back=2.25s\r\n"
      "\tat 3s leave node=random\n"
      "at 3s stop node=2 for=1s;;\n"
      "at 3s cut node=0 for=1s  # a comment; at 3s kill rank=9\n");
  REQUIRE(script.statements ==
          std::vector<ScriptStatement>{
              {When::time, 1500ms, 0, {}, {.kind = FaultKind::kill_rank, .target = 1}},
              {When::step, 0s, 20, {}, {.kind = FaultKind::kill_rank, .target = {}, .signal = SIGSEGV}},
              {When::time, 500ms, 0, {}, {.kind = FaultKind::stop_rank, .target = 3, .lasts = 2min}},
              {When::every, 10s, 0, 4, {.kind = FaultKind::slow_rank, .target = 0, .by_percent = 30, .lasts = 5s}},
              {When::time, 3s, 0, {}, {.kind = FaultKind::kill_node, .target = 1, .back = 2250ms}},
              {When::time, 3s, 0, {}, {.kind = FaultKind::leave_node, .target = {}}},
              {When::time, 3s, 0, {}, {.kind = FaultKind::stop_node, .target = 2, .lasts = 1s}},
              {When::time, 3s, 0, {}, {.kind = FaultKind::cut_node, .target = 0, .lasts = 1s}},
          });
}

TEST_CASE("expectations and the seed are read, in one statement or in several", "[unit][rehearsal]") {
  auto script = script_of("expect exit=3 restarts<=2 recovery<=30s ranks=8; seed=17");
  REQUIRE(script.expect == ScriptExpectations{3, 2, true, 30s, 8});
  REQUIRE(script.seed == 17);
  script = script_of("expect exit=0\nexpect restarts=1");
  REQUIRE(script.expect == ScriptExpectations{0, 1, false, {}, {}});
}

TEST_CASE("a mistake is told with its place, what it is and what was expected", "[unit][rehearsal]") {
  CHECK(mistake("at 5s kill rank=1\nat 3 kill rank=1") ==
        "2:4: '3' is no time: expected a time such as 1.5s, 500ms or 2m, or step N");
  CHECK(mistake("at 5s; expect exit=0") == "1:6: the statement ends: expected kill, stop, slow, leave or cut");
  CHECK(mistake("in 5s kill rank=1") == "1:1: 'in' begins no statement: expected at, every, expect or seed=N");
  CHECK(mistake("at 5s freeze rank=1") == "1:7: 'freeze' is no action: expected kill, stop, slow, leave or cut");
  CHECK(mistake("at 5s kill") == "1:11: the statement ends: expected rank=N or rank=random, node=N or node=random");
  CHECK(mistake("at 5s slow node=1 by=3% for=1s") ==
        "1:12: 'node=1' is nothing to slow: expected rank=N or rank=random");
  CHECK(mistake("at 5s kill rank=x") ==
        "1:12: 'rank=x' names none: expected rank=N or rank=random, node=N or node=random");
  CHECK(mistake("at 5s kill rank=1 for=3s") ==
        "1:19: 'for=3s' has no place here: expected signal=, or the statement's end");
  CHECK(mistake("at 5s kill rank=1 signal=FOO") ==
        "1:19: 'signal=FOO' has no such value: expected a signal such as TERM");
  CHECK(mistake("at 5s stop rank=1") == "1:18: stop needs for=: expected a time such as 1.5s, 500ms or 2m");
  CHECK(mistake("at 5s stop rank=1 for=3") == "1:19: 'for=3' is no time: expected a time such as 1.5s, 500ms or 2m");
  CHECK(mistake("at 5s slow rank=1 for=3s # by=3%") == "1:25: slow needs by=: expected 1% to 1000%");
  CHECK(mistake("at 5s slow rank=1 by=30 for=3s") == "1:19: 'by=30' has no such value: expected 1% to 1000%");
  CHECK(mistake("at 5s kill rank=1 times=3").starts_with("1:19: 'times=3' has no place here"));
  CHECK(mistake("at 5s stop rank=1 for=1s for=2s").starts_with("1:26: 'for=2s' is given twice"));
  CHECK(mistake("at 0s kill rank=1") == "1:4: '0s' is no time at all: expected more than 0");
  CHECK(mistake("at 721h kill rank=1").starts_with("1:4: '721h' is no time: expected"));
  CHECK(mistake("at 43201m kill rank=1") == "1:4: '43201m' is too long: expected 30 days or less");
  CHECK(mistake("at 5s kill node=1 back=0ms") == "1:19: 'back=0ms' is no time at all: expected more than 0");
  CHECK(mistake("expect recovery<=0.0s") == "1:8: 'recovery<=0.0s' is no time at all: expected more than 0");
  CHECK(mistake("expect recovery<=soon").starts_with("1:8: 'recovery<=soon' is no time: expected exit=N"));
  CHECK(mistake("at 5s kill rank=1 signal=TERM signal=KILL") ==
        "1:31: 'signal=KILL' is given twice: expected the statement's end");
  CHECK(mistake("at 5s slow rank=1 for=1s by=5% for=1s") ==
        "1:32: 'for=1s' is given twice: expected the statement's end");
  CHECK(mistake("at 5s slow rank=1 for=1s for=1s") ==
        "1:26: 'for=1s' is given twice: expected by=, or the statement's end");
  CHECK(mistake("every 50ms kill rank=1") == "1:7: '50ms' is too short: expected 100ms or more");
  CHECK(mistake("at step kill rank=1").starts_with("1:9: 'kill' is no step: expected a number from 0 to"));
  CHECK(mistake("expect") ==
        "1:7: the statement ends: expected exit=N, restarts=N, restarts<=N, recovery<=TIME or ranks=N");
  CHECK(mistake("expect steps=3").starts_with("1:8: 'steps=3' cannot be expected: expected exit=N"));
  CHECK(mistake("expect exit=256").starts_with("1:8: 'exit=256' has no such value"));
  CHECK(mistake("expect recovery=3s").starts_with("1:8: 'recovery=3s' cannot be expected"));
  CHECK(mistake("expect restarts=1 restarts<=2") == "1:19: 'restarts<=2' is expected twice: expected it once");
  CHECK(mistake("seed=1\nseed=2") == "2:1: there is a seed already: expected one");
  CHECK(mistake("seed=-1") == "1:1: 'seed=-1' is no seed: expected seed=N, N from 0 on");
  CHECK(mistake("seed=1 2") == "1:8: '2' has no place here: expected the statement's end");
  CHECK(mistake("").starts_with("1:1: the script is empty"));
  CHECK(mistake(" # nothing\n;\n").starts_with("1:1: the script is empty"));
}

TEST_CASE("a stranger's script is shown as text, and cut", "[unit][rehearsal]") {
  CHECK(mistake("\x1b[2J").find('\x1b') == std::string::npos);
  CHECK(mistake(std::string(5000, 'x')).size() < 200);
}

TEST_CASE("times have units and limits", "[unit][rehearsal]") {
  const auto time = [](const std::string& text) { return parse_rehearsal("at " + text + " kill rank=0"); };
  for (const char* good : {"1ms", "0.001ms", "1.125s", "0.5m", "720h"}) {
    CAPTURE(good);
    CHECK(time(good).has_value() == (std::string_view{good} != "720h"));
  }
  CHECK(time("43200m")->statements[0].time == script_time_max);
  CHECK_FALSE(time("43200.001m").has_value());
  CHECK_FALSE(time("43201m").has_value());
  for (const char* bad :
       {"0s", "0.0s", "1", "s", "1.s", ".5s", "1.0001s", "-1s", "1e3s", "1..2s", "99999999999999999999s"}) {
    CAPTURE(bad);
    CHECK_FALSE(time(bad).has_value());
  }
}

TEST_CASE("numbers have limits", "[unit][rehearsal]") {
  CHECK(parse_rehearsal("at 1s kill node=65535").has_value());
  CHECK_FALSE(parse_rehearsal("at 1s kill node=65536").has_value());
  CHECK(parse_rehearsal("at 1s kill rank=1073741823").has_value());
  CHECK_FALSE(parse_rehearsal("at 1s kill rank=1073741824").has_value());
  CHECK(parse_rehearsal("every 100ms kill rank=1 times=1000").has_value());
  CHECK_FALSE(parse_rehearsal("every 100ms kill rank=1 times=1001").has_value());
  CHECK_FALSE(parse_rehearsal("every 1s kill rank=1 times=0").has_value());
  CHECK(parse_rehearsal("at 1s slow rank=1 by=1000% for=1s").has_value());
  CHECK_FALSE(parse_rehearsal("at 1s slow rank=1 by=1001% for=1s").has_value());
  CHECK_FALSE(parse_rehearsal("at 1s slow rank=1 by=0% for=1s").has_value());
  CHECK(parse_rehearsal("at step 9007199254740992 kill rank=1").has_value());
  CHECK_FALSE(parse_rehearsal("at step 9007199254740993 kill rank=1").has_value());
  CHECK(parse_rehearsal("seed=18446744073709551615").has_value());
  CHECK_FALSE(parse_rehearsal("seed=18446744073709551616").has_value());
}

TEST_CASE("a script has at most 256 statements and 64 KiB", "[unit][rehearsal]") {
  CHECK(parse_rehearsal(repeated("at 1s kill rank=1\n", script_statements_max)).has_value());
  const auto more = parse_rehearsal(repeated("at 1s kill rank=1\n", script_statements_max + 1));
  REQUIRE_FALSE(more.has_value());
  CHECK(more.error().code == make_error_code(errc::limit_exceeded));
  CHECK(more.error().message() == "257:1: a script has at most 256 statements");
  std::string text = "seed=1#";
  text.resize(script_bytes_max, 'x');
  CHECK(parse_rehearsal(text).has_value());
  CHECK(parse_rehearsal(text + "x").error().code == make_error_code(errc::limit_exceeded));
}

TEST_CASE("a script told is read as the same script", "[unit][rehearsal]") {
  const std::string text =
      "at 1.5s kill rank=1\n"
      "at step 20 kill rank=random signal=SIGSEGV\n"
      "every 10s slow rank=0 by=30% for=500ms times=4\n"
      "at 120s kill node=1 back=2.25s\n"
      "at 0.5ms cut node=random for=1000.001ms\n"
      "expect exit=0\n"
      "expect restarts<=2\n"
      "expect recovery<=30s\n"
      "expect ranks=4\n"
      "seed=5\n";
  REQUIRE(to_text(script_of(text)) == text);
}
