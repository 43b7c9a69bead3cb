#include "rendezvous/core/ops/event_ring.hpp"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

using namespace torchup;

namespace {

struct Read {
  std::vector<std::string> texts;
  EventRings::Seen seen;
};

Read read(const EventRings& rings, std::uint64_t since, Right right = Right::control, std::size_t bytes_max = 1 << 20) {
  Read all;
  all.seen = rings.read("job", since, right, bytes_max,
                        [&](std::uint64_t, std::string_view text) { all.texts.emplace_back(text); });
  return all;
}

EventRings with(int events, EventRings::Limits limits = {}) {
  EventRings rings{limits};
  for (int number = 1; number <= events; ++number) rings.add("job", R"({"n":)" + std::to_string(number) + "}");
  return rings;
}

}  // namespace

TEST_CASE("events are numbered from 1 on within their job", "[unit][event_ring]") {
  EventRings rings{{}};
  REQUIRE(rings.last("job") == 0);
  REQUIRE(rings.add("job", R"({"type":"a"})") == 1);
  REQUIRE(rings.add("other", "{}") == 1);
  REQUIRE(rings.add("job", R"({"type":"b"})") == 2);
  REQUIRE(read(rings, 0).texts == std::vector<std::string>{R"({"seq":1,"type":"a"})", R"({"seq":2,"type":"b"})"});
  REQUIRE(read(rings, 1).texts == std::vector<std::string>{R"({"seq":2,"type":"b"})"});
  REQUIRE(read(rings, 0).seen.next == 2);
  REQUIRE(read(rings, 2).texts.empty());
  REQUIRE_FALSE(read(rings, 2).seen.gap);
  REQUIRE(read(rings, 2).seen.next == 2);
}

TEST_CASE("an event without members has its number, too", "[unit][event_ring]") {
  EventRings rings{{}};
  rings.add("job", "{}");
  REQUIRE(read(rings, 0).texts == std::vector<std::string>{R"({"seq":1})"});
}

TEST_CASE("a number that an event brings along is not its number", "[unit][event_ring]") {
  EventRings rings{{}};
  rings.add("job", R"({"a":{"seq":5},"seq":99,"b":1})");
  rings.add("job", R"({"\u0073\u0065\u0071":99,"b":1})");  // spelled with escapes
  REQUIRE(read(rings, 0).texts == std::vector<std::string>{R"({"seq":1,"a":{"seq":5},"b":1})", R"({"seq":2,"b":1})"});
}

TEST_CASE("a line of several jobs says whose it is, whatever the event says", "[unit][event_ring]") {
  REQUIRE(event_line("job", 7, R"({"event":"a"})") == "{\"run_id\":\"job\",\"seq\":7,\"event\":\"a\"}\n");
  REQUIRE(event_line("job", 7, R"({"run_id":"other","event":"a","seq":1})") ==
          "{\"run_id\":\"job\",\"seq\":7,\"event\":\"a\"}\n");
  for (const char* forged : {R"({"run\u005fid":"other","event":"a"})", R"({"event":"a","\u0073eq":1})",
                             R"({"event":"a","ru\u006E_id":"other"})"}) {
    CHECK(event_line("job", 7, forged) == "{\"run_id\":\"job\",\"seq\":7,\"event\":\"a\"}\n");
  }
  REQUIRE(event_line("job", 7, R"({"text":"\u001b[31m"})") ==
          "{\"run_id\":\"job\",\"seq\":7,\"text\":\"\\u001b[31m\"}\n");
  REQUIRE(event_line("a\"\n", 7, "{}") == "{\"run_id\":\"a\\\"\\n\",\"seq\":7}\n");
}

TEST_CASE("the oldest events go, and are counted for those who missed them", "[unit][event_ring]") {
  const EventRings at_limit = with(4, {.events_max = 4});
  REQUIRE(read(at_limit, 0).seen.lost == 0);
  REQUIRE_FALSE(read(at_limit, 0).seen.gap);
  const EventRings beyond = with(7, {.events_max = 4});
  const Read late = read(beyond, 1);
  REQUIRE(late.texts.size() == 4);
  REQUIRE(late.seen.lost == 2);
  REQUIRE(late.seen.gap);
  REQUIRE(late.seen.next == 7);
  REQUIRE(late.texts.front() == R"({"seq":4,"n":4})");
  REQUIRE_FALSE(read(beyond, 3).seen.gap);
}

TEST_CASE("a number that never was is a gap", "[unit][event_ring]") {
  const EventRings rings = with(3);
  const Read never = read(rings, 4);
  REQUIRE(never.seen.gap);
  REQUIRE(never.seen.lost == 0);
  REQUIRE(never.texts.size() == 3);
  REQUIRE(read(rings, UINT64_MAX).seen.gap);
  REQUIRE(read(EventRings{{}}, 1).seen.gap);
  REQUIRE(read(EventRings{{}}, 1).seen.next == 0);
  REQUIRE_FALSE(read(EventRings{{}}, 0).seen.gap);
}

TEST_CASE("numbers go on above those of the process before", "[unit][event_ring]") {
  EventRings rings{{.above = 40}};
  REQUIRE(rings.last("job") == 40);
  const Read early = read(rings, 38);
  REQUIRE(early.seen.gap);
  REQUIRE(early.seen.lost == 0);  // it had none of those
  REQUIRE(early.seen.next == 40);
  REQUIRE_FALSE(read(rings, 40).seen.gap);
  REQUIRE(rings.add("job", "{}") == 41);
  REQUIRE(rings.add("job", "{}") == 42);
  REQUIRE(read(rings, 50).seen.next == 42);
  const Read whole = read(rings, 0);  // who has none yet misses none
  REQUIRE_FALSE(whole.seen.gap);
  REQUIRE(whole.texts == std::vector<std::string>{R"({"seq":41})", R"({"seq":42})"});
  REQUIRE(rings.add("other", "{}") == 41);
}

TEST_CASE("of a run id that is used again no number is given twice", "[unit][event_ring]") {
  EventRings rings = with(3);
  rings.add("other", "{}");
  rings.keep_only({"other"});
  REQUIRE(rings.last("job") == 3);
  REQUIRE(rings.last("other") == 1);
  REQUIRE(rings.add("job", R"({"type":"anew"})") == 4);
  const Read behind = read(rings, 3);  // who has seen all of the job before
  REQUIRE_FALSE(behind.seen.gap);
  REQUIRE(behind.texts == std::vector<std::string>{R"({"seq":4,"type":"anew"})"});
  REQUIRE(read(rings, 2).seen.gap);
}

TEST_CASE("an answer is cut at its limit, and goes on behind it", "[unit][event_ring]") {
  const EventRings rings = with(9);
  const std::size_t one = std::string{R"({"seq":1,"n":1})"}.size();
  const Read first = read(rings, 0, Right::control, 4 * one);
  REQUIRE(first.texts.size() == 4);
  REQUIRE(first.seen.next == 4);
  REQUIRE(read(rings, 4, Right::control, 4 * one - 1).texts.size() == 3);
  REQUIRE(read(rings, 0, Right::control, 1).texts.size() == 1);  // else nobody got past it
}

TEST_CASE("who may only read does not see what workers wrote", "[unit][event_ring]") {
  EventRings rings{{}};
  rings.add("job", R"({"type":"worker_exited","message":"secret"})");
  REQUIRE(read(rings, 0, Right::control).texts.front() == R"({"seq":1,"type":"worker_exited","message":"secret"})");
  REQUIRE(read(rings, 0, Right::read).texts.front() == R"({"seq":1,"type":"worker_exited","withheld":true})");
}

TEST_CASE("all jobs share one limit of bytes, and who has most loses", "[unit][event_ring]") {
  EventRings rings{{.events_max = 1000, .bytes_max = 20'000}};
  rings.add("quiet", "{}");
  const std::string event = R"({"text":")" + std::string(400, 'x') + R"("})";
  for (int number = 0; number < 500; ++number) {
    rings.add("job", event);
    REQUIRE(rings.bytes() <= 20'000);
  }
  REQUIRE(read(rings, 0).texts.size() > 20);
  std::size_t quiet = 0;
  rings.read("quiet", 0, Right::control, 100, [&](std::uint64_t, std::string_view) { ++quiet; });
  REQUIRE(quiet == 1);
  rings.keep_only({"quiet", "unknown"});
  REQUIRE(read(rings, 0).texts.empty());
  REQUIRE(rings.last("quiet") == 1);
  REQUIRE(rings.bytes() > 0);
  rings.keep_only({});
  REQUIRE(rings.bytes() == 0);
  rings.add("job", R"({"text":")" + std::string(30'000, 'x') + R"("})");  // never fits
  REQUIRE(rings.bytes() == 0);
  REQUIRE(read(rings, 0).seen.lost == 1);
}

TEST_CASE("a stranger's event is an object in one line", "[unit][event_ring]") {
  REQUIRE(is_event(R"({"type":"a"})"));
  for (const std::string text :
       {"", "{", "[]", "{}\n", " {}", "{\"a\":\n1}", "{\"a\":\r1}", "{}{}", "{\"a\":\"\xFF\"}"}) {
    REQUIRE_FALSE(is_event(text));
  }
}
