#include "launcher/core/scheduler/stop_time.hpp"

#include <catch2/catch.hpp>
#include <csignal>
#include <limits>

#include "rendezvous/core/link/messages.hpp"

namespace torchup {

using namespace std::chrono_literals;
using Due = StopTime::Due;

TEST_CASE("words for a time", "[unit][scheduler]") {
  for (const auto& [text, time] : std::initializer_list<std::pair<const char*, Duration>>{
           {"300", 300s}, {"90s", 90s}, {"5m", 5min}, {"1h30m", 90min}, {"1d", 24h}, {"1d2h3m4s", 26h + 184s}}) {
    CAPTURE(text);
    REQUIRE(parse_duration(text) == time);
  }
  REQUIRE(parse_duration("365d") == duration_max);
  for (const char* const text : {"", "0", "0m", "m", "5x", "5m3", "5m1h", "5m5m", "-5", "+5", " 5", "5 m", "1.5h", "5M",
                                 "365d1s", "31536001", "9223372036854775808", "1h\n"}) {
    CAPTURE(text);
    REQUIRE_FALSE(parse_duration(text));
  }
}

TEST_CASE("how long before the end, and by which signal", "[unit][scheduler]") {
  REQUIRE(*parse_stop_before("5m") == StopBefore{.lead = 5min, .signal = SIGTERM});
  REQUIRE(*parse_stop_before("90s@USR1") == StopBefore{.lead = 90s, .signal = SIGUSR1});
  REQUIRE(*parse_stop_before("1@SIGUSR2") == StopBefore{.lead = 1s, .signal = SIGUSR2});
  for (const char* const text : {"", "@USR1", "5m@", "5m@NONE", "5m@KILL", "5m@CHLD", "5m@USR1@USR2"}) {
    CAPTURE(text);
    REQUIRE(parse_stop_before(text).error().code == make_error_code(errc::bad_value));
  }
}

TEST_CASE("workers are asked once, at their time", "[unit][scheduler]") {
  const TimePoint t0{};
  StopTime time{5min, 25s, false};
  REQUIRE_FALSE(time.deadline());
  REQUIRE(time.due(t0 + 100h) == Due::nothing);  // no end is known
  time.know(t0 + 1h);
  REQUIRE(time.deadline() == t0 + 55min);
  REQUIRE(time.due(t0 + 55min - 1ns) == Due::nothing);
  REQUIRE(time.due(t0 + 55min) == Due::stopping);
  REQUIRE(time.is_stopping());
  REQUIRE(time.due(t0 + 56min) == Due::nothing);
  REQUIRE_FALSE(time.deadline());
  REQUIRE(time.terminate_at() == t0 + 1h - 30s);
  REQUIRE(time.kill_at() == t0 + 1h - 5s);
}

TEST_CASE("a short lead leaves four fifths of it for saving, and some of the rest for SIGTERM", "[unit][scheduler]") {
  const TimePoint t0{};
  StopTime time{10s, 25s, false};
  time.know(t0 + 1h);
  REQUIRE(time.terminate_at() == t0 + 1h - 2s);
  REQUIRE(time.kill_at() < t0 + 1h);
  REQUIRE(time.kill_at() > time.terminate_at() + 1s);
  StopTime impatient{10min, 3s, false};
  impatient.know(t0 + 1h);
  REQUIRE(impatient.kill_at() == impatient.terminate_at() + 3s);
}

TEST_CASE("before it acts it is asked again when the time ends", "[unit][scheduler]") {
  const TimePoint t0{};
  StopTime time{5min, 25s, true};
  time.know(t0 + 1h);
  REQUIRE(time.deadline() == t0 + 54min);
  REQUIRE(time.due(t0 + 54min - 1ns) == Due::nothing);
  REQUIRE(time.due(t0 + 54min) == Due::asking);
  REQUIRE(time.due(t0 + 54min) == Due::nothing);
  REQUIRE(time.deadline() == t0 + 55min);
  SECTION("an answer that says the same changes nothing, whole seconds or not") {
    time.know(t0 + 1h + 900ms);
    REQUIRE(time.due(t0 + 54min + 1s) == Due::nothing);
    REQUIRE(time.due(t0 + 55min + 1s) == Due::stopping);
  }
  SECTION("more time is taken, and asked for again") {
    time.know(t0 + 2h);
    REQUIRE(time.due(t0 + 55min) == Due::nothing);
    REQUIRE(time.deadline() == t0 + 114min);
    REQUIRE(time.due(t0 + 114min) == Due::asking);
  }
  SECTION("no end any more") {
    time.know({});
    REQUIRE_FALSE(time.deadline());
    REQUIRE(time.due(t0 + 10h) == Due::nothing);
  }
  SECTION("less time is obeyed at once") {
    time.know(t0 + 55min);
    REQUIRE(time.due(t0 + 54min) == Due::stopping);
  }
  SECTION("no end any more is no news where workers are stopping already") {
    REQUIRE(time.due(t0 + 55min) == Due::stopping);
    time.know({});
    REQUIRE(time.is_stopping());
    REQUIRE(time.end() == t0 + 1h);
    REQUIRE(time.terminate_at() == t0 + 1h - 30s);
  }
  SECTION("no answer: what was known stands") { REQUIRE(time.due(t0 + 55min) == Due::stopping); }
}

TEST_CASE("another node's clock may be ahead: by much, and its end is the newer one", "[unit][scheduler]") {
  const TimePoint t0{};
  StopTime time{5min, 25s, false};
  time.know(t0 + 1h);
  SECTION("a little") {
    REQUIRE(time.heed_stop(t0 + 54min));
    REQUIRE(time.end() == t0 + 1h);
    time.stop();
    REQUIRE_FALSE(time.heed_stop(t0 + 54min));  // it is asked already
    REQUIRE(time.due(t0 + 55min) == Due::nothing);
  }
  SECTION("by much") {
    REQUIRE(time.heed_stop(t0 + 54min - 1ns));
    REQUIRE(time.end() == t0 + 59min - 1ns);
  }
  SECTION("here it was to be never") {
    time.know({});
    REQUIRE(time.heed_stop(t0 + 10h));
    REQUIRE(time.end() == t0 + 10h + 5min);
  }
}

TEST_CASE("where nobody tells the end, another node's stop tells it", "[unit][scheduler]") {
  const TimePoint t0{};
  StopTime time{5min, 25s, false, true};
  REQUIRE(time.due(t0 + 10h) == Due::nothing);
  REQUIRE_FALSE(time.deadline());  // nobody can be asked
  REQUIRE(time.heed_stop(t0 + 10h));
  REQUIRE(time.end() == t0 + 10h + 5min);
}

TEST_CASE("where nobody has told the end, it is asked each minute until somebody does", "[unit][scheduler]") {
  const TimePoint t0{};
  StopTime time{5min, 25s, true, true};
  REQUIRE(time.due(t0) == Due::nothing);
  for (const TimePoint minute : {t0 + 1min, t0 + 2min, t0 + 3min}) {
    REQUIRE(time.deadline() == minute);
    REQUIRE(time.due(minute - 1ns) == Due::nothing);
    REQUIRE(time.due(minute) == Due::asking);
    REQUIRE(time.due(minute) == Due::nothing);
  }
  SECTION("an end") {
    time.know(t0 + 1h);
    REQUIRE(time.deadline() == t0 + 54min);
    REQUIRE(time.due(t0 + 54min) == Due::asking);
    REQUIRE(time.due(t0 + 55min) == Due::stopping);
  }
  SECTION("that is never") {
    time.know({});
    REQUIRE_FALSE(time.deadline());
    REQUIRE(time.due(t0 + 10h) == Due::nothing);
  }
}

}  // namespace torchup
