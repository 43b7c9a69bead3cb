#include "launcher/core/record/event_schema.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "launcher/core/options/event_names.hpp"
#include "launcher/core/record/launch_event.hpp"
#include "launcher/core/record/time_event.hpp"

using namespace torchup;
using nlohmann::json;

namespace {

/// One event of each type, by its place in the variant, with nothing in it.
template <std::size_t... I>
std::vector<EventBody> empty_events(std::index_sequence<I...>) {
  return {EventBody{std::in_place_index<I>}...};
}
std::vector<EventBody> empty_events() {
  auto events = empty_events(std::make_index_sequence<std::variant_size_v<EventBody>>{});
  for (EventBody& event : events) {
    if (auto* const found = std::get_if<event::Preflight>(&event)) found->level = "warning";  // there is always one
  }
  return events;
}

const WorkerId worker{Rank{5}, LocalRank{1}, 101};
const WorkerSteps steps{9, 5, 13, 10'000'000, 40'000'000, 5'000'000};

/// Those whose fields are there only sometimes, with all of them.
std::vector<EventBody> full_events() {
  event::WorkerExited exited{worker, -9, WorkerEnd::failed, "boom \xff", "/e", steps, "/bin/prog"};
  exited.consequence = true;
  event::HangFound hang;
  hang.culprits = {Rank{3}};
  hang.collective = AwaitedCollective{.group = "0", .number = 7, .operation = "all_reduce"};
  hang.collective->operations.emplace_back();
  event::Progress progress{5, 13, 2.5, {{Rank{5}, steps}}};
  RehearsalResult rehearsal;
  rehearsal.faults = {{"kill rank=1", std::chrono::seconds{5}, false, std::chrono::seconds{1}, {}, 3}};
  Verdict verdict{1, "rank 5 failed", {WorkerFailure{.rank = Rank{5}, .exit_code = -9}}};
  event::StragglerFound late;
  late.found.rank = Rank{3};
  return {exited,
          hang,
          progress,
          event::RehearsalEnded{rehearsal},
          event::JobEnded{verdict, 3},
          late,
          event::WorkerSeen{worker, "sleeping", 7},
          event::IncidentRecorded{"/i.json", "rank 5 failed", true, {"loss nan", "bye"}},
          event::Warning{"a timer ran out", "step"},
          event::WorkerHung{worker, "it is stuck", "all_reduce #1"},
          event::PreloadGivenUp{"it cannot be forked", "ValueError: 1"},
          event::Notice{"a worker asks", LogLevel::debug, "why"}};
}

json line_of(const EventBody& event) { return json::parse(to_json_line({{1'795'234'093'000'001, 1}, event}, "node1")); }

json schema() { return json::parse(event_schema_text); }

/// What the schema says of one type of events.
json of_type(const json& schema, const std::string& name) {
  for (const json& rule : schema.at("allOf")) {
    if (rule.at("if").at("properties").at("event").at("const") == name) return rule.at("then");
  }
  return {};
}

bool any_of(const json& list, const std::function<bool(const json&)>& is) {
  return std::any_of(list.begin(), list.end(), is);
}

/// The part of JSON Schema that this one is written in.
bool holds(const json& value, const json& rule, const json& whole) {
  if (rule.contains("$ref")) {
    return holds(value, whole.at(json::json_pointer{rule.at("$ref").get<std::string>().substr(1)}), whole);
  }
  if (rule.contains("const")) return value == rule.at("const");
  if (rule.contains("enum")) {
    return any_of(rule.at("enum"), [&](const json& each) { return each == value; });
  }
  if (rule.contains("anyOf")) {
    return any_of(rule.at("anyOf"), [&](const json& each) { return holds(value, each, whole); });
  }
  const auto type = rule.at("type").get<std::string>();
  if (type == "null") return value.is_null();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "number") return value.is_number();
  if (type == "integer") return value.is_number_integer() && (!rule.contains("minimum") || value >= rule.at("minimum"));
  if (type == "array") {
    if (value.size() < rule.value("minItems", std::size_t{0})) return false;
    return value.is_array() && !any_of(value, [&](const json& each) {
             return rule.contains("items") && !holds(each, rule.at("items"), whole);
           });
  }
  if (!value.is_object()) return false;
  for (const auto& name : rule.value("required", json::array())) {
    if (!value.contains(name.get<std::string>())) return false;
  }
  const json properties = rule.value("properties", json::object());
  for (const auto& [name, of] : properties.items()) {
    if (value.contains(name) && !holds(value.at(name), of, whole)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("the names of events are those that are recorded", "[unit][events]") {
  std::set<std::string> recorded;
  for (const EventBody& event : empty_events()) recorded.insert(event_name(event));
  CHECK(recorded == std::set<std::string>(event_names().begin(), event_names().end()));
  for (const std::string& name : recorded) CHECK(is_event_name(name));
  CHECK_FALSE(is_event_name("worker"));
}

TEST_CASE("the schema has every type of events, and no others", "[unit][events]") {
  const json whole = schema();
  auto known = whole.at("properties").at("event").at("enum").get<std::set<std::string>>();
  for (const std::string_view name : event_names()) CHECK(known.erase(std::string{name}) == 1);
  CHECK(known == std::set<std::string>{"node_joined", "node_left", "node_refused", "round_formed"});  // coordinators'
  CHECK(whole.at("allOf").size() == event_names().size() + known.size());
}

TEST_CASE("events are as the schema has them, and it has all of their fields", "[unit][events]") {
  const json whole = schema();
  std::vector<EventBody> events = empty_events();
  const std::vector<EventBody> full = full_events();
  events.insert(events.end(), full.begin(), full.end());
  for (const EventBody& event : events) {
    const json line = line_of(event);
    CAPTURE(line.dump());
    const json rule = of_type(whole, line.at("event"));
    REQUIRE_FALSE(rule.is_null());
    for (const auto& name : rule.at("required")) CHECK(line.contains(name.get<std::string>()));
    for (const auto& name : whole.at("required")) CHECK(line.contains(name.get<std::string>()));
    for (const auto& [name, value] : line.items()) {
      CAPTURE(name);
      const bool is_own = rule.at("properties").contains(name);
      REQUIRE((is_own || whole.at("properties").contains(name)));
      if (name == "time") continue;
      CHECK(holds(value, is_own ? rule.at("properties").at(name) : whole.at("properties").at(name), whole));
    }
  }
}

TEST_CASE("what is read of a line is what was recorded", "[unit][events]") {
  std::vector<EventBody> events = empty_events();
  const std::vector<EventBody> full = full_events();
  events.insert(events.end(), full.begin(), full.end());
  event::JobStarted started;
  started.run_id = "run";
  started.local_world_size = 4;
  events.emplace_back(std::move(started));
  Placement place{Round{3}, GroupRank{1}, 2, Rank{4}, 8};
  place.restart_count = 2;
  events.emplace_back(event::RoundCompleted{place});
  for (const EventBody& event : events) {
    const LaunchEvent happened{{1'795'234'093'000'001, 77}, event};
    const std::string line = to_json_line(happened, "node1");
    CAPTURE(line);
    const auto read = read_time_event(line);
    REQUIRE(read.has_value());
    CHECK(*read == time_event_of(happened, "node1"));
  }
}

TEST_CASE("a line that is no event is refused with what is wrong", "[unit][events]") {
  const auto why = [](std::string_view line) {
    const auto read = read_time_event(line);
    return read ? std::string{"it is read"} : read.error().context;
  };
  const std::string head = R"({"schema":1,"monotonic_us":5,"host":"a","event":)";
  CHECK(why("{") == "it is not JSON");
  CHECK(why("[]").find("schema is missing") != std::string::npos);
  CHECK(why(R"({"schema":2,"monotonic_us":5,"host":"a","event":"waiting"})") ==
        "it is of schema 2, and we read up to 1");
  CHECK(why(R"({"schema":1,"monotonic_us":-5,"host":"a","event":"waiting"})").find("monotonic_us") !=
        std::string::npos);
  CHECK(why(head + R"("job_started","run_id":"x","local_world_size":0})").find("local_world_size") !=
        std::string::npos);
  CHECK(why(head + R"("job_started","run_id":"x","local_world_size":16385})").find("local_world_size") !=
        std::string::npos);
  CHECK(
      why(head + R"("round_completed","round":18446744073709551615,"first_rank":0,"restart_count":0})").find("round") !=
      std::string::npos);
  CHECK(why(head + R"("something_new"})") == "it is read");
  CHECK(why(head + R"("progress","ranks":[[0,1,2],[1,2,3,4],"x"],"times":7})") == "it is read");
  CHECK(why(std::string(event_line_bytes_max + 1, ' ')).find("too long") != std::string::npos);
}
