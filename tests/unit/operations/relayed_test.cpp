#include "launcher/core/ops/relayed.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

TEST_CASE("an agent's own job has its launcher's pid and program among the jobs that it passes on",
          "[unit][operations]") {
  const std::string others = R"({"run_id":"c","name":null}]})";
  const auto jobs =
      with_launcher(R"({"schema":1,"jobs":[{"run_id":"a/b","name":null,"step":3},)" + others, "a/b", 42, "train.py");
  REQUIRE(jobs);
  CHECK(*jobs == R"({"schema":1,"jobs":[{"run_id":"a/b","name":"train.py","step":3,"pid":42},)" + others + "\n");
  const auto named = with_launcher(R"({"jobs":[{"run_id":"a/b","name":"a title"}]})", "a/b", 42, "train.py");
  CHECK(named == "{\"jobs\":[{\"run_id\":\"a/b\",\"name\":\"a title\",\"pid\":42}]}\n");
  CHECK_FALSE(with_launcher("{\"jobs\":", "a", 1, "x"));
  CHECK_FALSE(with_launcher("[]", "a", 1, "x"));
  CHECK_FALSE(with_launcher(R"({"jobs":{}})", "a", 1, "x"));
}

TEST_CASE("events that were asked for become frames of a stream", "[unit][operations]") {
  const auto two = relayed_events(R"({"events":[{"seq":7,"event":"a\nb"},{"seq":8}],"next":8,"lost":0})", 6);
  REQUIRE(two);
  CHECK(two->next == 8);
  CHECK(two->frames ==
        "event: event\nid: 7\ndata: {\"event\":\"a\\nb\",\"seq\":7}\n\nevent: event\nid: 8\ndata: {\"seq\":8}\n\n");

  const auto gap = relayed_events(R"({"events":[],"next":3,"lost":2})", 1);
  REQUIRE(gap);
  CHECK(gap->frames == "event: gap\ndata: {\"lost\":2}\n\n");
  CHECK(relayed_events(R"({"events":[],"next":3,"lost":0})", 3)->frames.empty());

  CHECK_FALSE(relayed_events(R"({"events":[]})", 0));
  CHECK_FALSE(relayed_events(R"({"next":3})", 0));
  CHECK_FALSE(relayed_events("nothing", 0));
}

TEST_CASE("what follows on a number that never was follows a gap", "[unit][operations]") {
  const std::string gap = "event: gap\ndata: {\"lost\":0}\n\n";
  SECTION("of a coordinator that counts from 1 again") {
    const auto told = relayed_events(R"({"events":[{"seq":1}],"next":1,"lost":0})", 57);
    CHECK(told->frames == gap + "event: event\nid: 1\ndata: {\"seq\":1}\n\n");
  }
  SECTION("of one that counts above all that were") {
    const auto told = relayed_events(R"({"events":[{"seq":1001}],"next":1001,"lost":0})", 57);
    CHECK(told->frames == gap + "event: event\nid: 1001\ndata: {\"seq\":1001}\n\n");
  }
  SECTION("but who has none begins with the first that there is") {
    const auto told = relayed_events(R"({"events":[{"seq":1001}],"next":1001,"lost":0})", 0);
    CHECK(told->frames == "event: event\nid: 1001\ndata: {\"seq\":1001}\n\n");
  }
  SECTION("also before there is one") {
    CHECK(relayed_events(R"({"events":[],"next":1000,"lost":0})", 57)->frames == gap);
  }
}

TEST_CASE("a snapshot tells how far its events are", "[unit][operations]") {
  CHECK(seq_of(R"({"seq":12,"nodes":{}})") == 12);
  CHECK_FALSE(seq_of(R"({"seq":-1})"));
  CHECK_FALSE(seq_of(R"({"seq":"1"})"));
  CHECK_FALSE(seq_of(""));
}
