#include "rendezvous/core/ops/note_event.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "rendezvous/core/ops/event_ring.hpp"

using namespace torchup;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

json event_of(const Note& note) {
  const std::string text = note_event(note, "door", {TimePoint{} + 1500us, 1'000'000});
  REQUIRE(is_event(text));
  json event = json::parse(text);
  REQUIRE(event.at("schema") == 1);
  REQUIRE(event.at("time") == "1970-01-01T00:00:01.000000Z");
  REQUIRE(event.at("monotonic_us") == 1500);
  for (const char* common : {"schema", "time", "monotonic_us"}) event.erase(common);
  return event;
}

}  // namespace

TEST_CASE("a coordinator records who comes, who goes, and what is ordered", "[unit][note_event]") {
  REQUIRE(event_of(NodeJoined{"a", 8, 2}) ==
          json{{"event", "node_joined"}, {"host", "a"}, {"workers", 8}, {"nodes", 2}});
  REQUIRE(event_of(NodeLost{"a", "has \"ended\"\n"}) ==
          json{{"event", "node_left"}, {"host", "a"}, {"reason", "has \"ended\"\n"}});
  REQUIRE(event_of(NodeRefused{"<b>", "\xFF"}) ==
          json{{"event", "node_refused"}, {"host", "<b>"}, {"reason", "\xEF\xBF\xBD"}});
  REQUIRE(event_of(NodeUnfit{"a", "hot"}) == json{{"event", "node_unfit"}, {"host", "a"}, {"reason", "hot"}});
  REQUIRE(event_of(RoundFormed{Round{3}, 2, 16, "a"}) ==
          json{{"event", "round_formed"}, {"host", "door"}, {"round", 3}, {"world_size", 16}, {"nodes", 2}});
  REQUIRE(event_of(OrderReceived{"drain", "user u (uid 7)"}) ==
          json{{"event", "order_received"}, {"host", "door"}, {"verb", "drain"}, {"by", "user u (uid 7)"}});
  REQUIRE(event_of(RoundStopped{Round{3}, StopCause::membership_change, "a left"}) ==
          json{{"event", "membership_changed"}, {"host", "door"}, {"reason", "a left"}});
}

TEST_CASE("what is for the log alone, or agents record, is no event of the coordinator's", "[unit][note_event]") {
  REQUIRE(note_event(RosterChanged{"a"}, "door", {}).empty());
  REQUIRE(note_event(JobConcluded{1, "failed"}, "door", {}).empty());
}
