#include "launcher/core/ops/relayed.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

TEST_CASE("an agent's own job has its launcher's pid among the jobs that it passes on", "[unit][operations]") {
  const auto jobs = with_pid(R"({"schema":1,"jobs":[{"run_id":"a/b","step":3},{"run_id":"c"}]})", "a/b", 42);
  REQUIRE(jobs);
  CHECK(*jobs == "{\"schema\":1,\"jobs\":[{\"run_id\":\"a/b\",\"step\":3,\"pid\":42},{\"run_id\":\"c\"}]}\n");
  CHECK_FALSE(with_pid("{\"jobs\":", "a", 1));
  CHECK_FALSE(with_pid("[]", "a", 1));
  CHECK_FALSE(with_pid(R"({"jobs":{}})", "a", 1));
}

TEST_CASE("events that were asked for become frames of a stream", "[unit][operations]") {
  const auto two = relayed_events(R"({"events":[{"seq":7,"event":"a\nb"},{"seq":8}],"next":8,"lost":0})");
  REQUIRE(two);
  CHECK(two->next == 8);
  CHECK(two->frames ==
        "event: event\nid: 7\ndata: {\"event\":\"a\\nb\",\"seq\":7}\n\nevent: event\nid: 8\ndata: {\"seq\":8}\n\n");

  const auto gap = relayed_events(R"({"events":[],"next":3,"lost":2})");
  REQUIRE(gap);
  CHECK(gap->frames == "event: gap\ndata: {\"lost\":2}\n\n");
  CHECK(relayed_events(R"({"events":[],"next":3,"lost":0})")->frames.empty());

  CHECK_FALSE(relayed_events(R"({"events":[]})"));
  CHECK_FALSE(relayed_events(R"({"next":3})"));
  CHECK_FALSE(relayed_events("nothing"));
}

TEST_CASE("a snapshot tells how far its events are", "[unit][operations]") {
  CHECK(seq_of(R"({"seq":12,"nodes":{}})") == 12);
  CHECK_FALSE(seq_of(R"({"seq":-1})"));
  CHECK_FALSE(seq_of(R"({"seq":"1"})"));
  CHECK_FALSE(seq_of(""));
}
