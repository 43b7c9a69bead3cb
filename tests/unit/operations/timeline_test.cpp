#include "launcher/core/record/timeline.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "launcher/core/record/launch_event.hpp"
#include "launcher/core/text/json.hpp"

using namespace torchup;

namespace {

constexpr std::int64_t day_us = 1'795'234'093'000'000;

/// Events of nodes, whose monotonic clocks began `behind` seconds after the day.
class Trace {
 public:
  Trace& at(std::int64_t seconds, const EventBody& body, const std::string& host = "a", std::int64_t behind = 0) {
    const LaunchEvent event{{day_us + seconds * 1'000'000, (seconds - behind) * 1'000'000}, body};
    const std::string line = to_json_line(event, host);
    REQUIRE(timeline.add(line, json::parse(line)).has_value());
    return *this;
  }
  /// "thread name begin-end" of slices, "thread name at: detail" of instants, in the order of their times.
  [[nodiscard]] std::vector<std::string> marks(const std::string& kind) const {
    const json all = json::parse(timeline.text());
    const auto number = [](const json& each, const char* name) { return each.at(name).get<int>(); };
    std::map<std::pair<int, int>, std::string> threads;
    std::map<int, std::string> nodes;
    for (const json& each : all.at("traceEvents")) {
      const std::string name = each.at("ph") == "M" ? each.at("args").at("name").get<std::string>() : "";
      if (each.at("name") == "process_name") nodes[number(each, "pid")] = name;
      if (each.at("name") == "thread_name") threads[{number(each, "pid"), number(each, "tid")}] = name;
    }
    std::multimap<std::int64_t, std::string> found;
    for (const json& each : all.at("traceEvents")) {
      if (each.at("ph") != kind) continue;
      const auto seconds = [](std::int64_t us) { return std::to_string(us / 1'000'000); };
      const std::int64_t at = each.at("ts");
      std::string text = nodes.at(number(each, "pid")) + " " + threads.at({number(each, "pid"), number(each, "tid")}) +
                         ": " + each.at("name").get<std::string>() + " " + seconds(at);
      if (kind == "X") text += "-" + seconds(at + each.at("dur").get<std::int64_t>());
      if (kind == "C") text += " " + each.at("args").at("value").dump();
      found.emplace(at, text);
    }
    std::vector<std::string> list;
    for (const auto& [at, text] : found) list.push_back(text);
    return list;
  }

  Timeline timeline;
};

const WorkerId first{Rank{2}, LocalRank{0}, 100};
const WorkerId second{Rank{3}, LocalRank{1}, 101};

Placement place(int round, int first_rank) {
  Placement placement;
  placement.round = Round{round};
  placement.first_rank = Rank{first_rank};
  return placement;
}

event::JobStarted job() {
  event::JobStarted started;
  started.run_id = "run";
  started.local_world_size = 2;
  return started;
}

}  // namespace

TEST_CASE("a job as slices, instants and a counter", "[unit][timeline]") {
  Trace trace;
  trace.at(100, job()).at(110, event::RoundCompleted{place(0, 2)}).at(110, event::AttemptStarted{"attempt_0", "", 0});
  trace.at(111, event::WorkerStarted{first, "", ""}).at(111, event::WorkerStarted{second, "", ""});
  trace.at(140, event::Progress{1, 2, 0.5, {}});
  event::WorkerExited failed{second, 1, WorkerEnd::failed, "", ""};
  failed.steps = WorkerSteps{3, 1, 3, 120'000'000, 150'000'000, 0};
  trace.at(160, failed).at(160, event::Stopping{"rank 3 failed"});
  trace.at(165, event::WorkerExited{first, -15, WorkerEnd::terminated, "", ""}).at(166, event::AttemptEnded{"x"});
  trace.at(167, event::Restarting{1, "rank 3 failed"}).at(170, event::RoundCompleted{place(1, 2)});
  trace.at(170, event::AttemptStarted{"attempt_1", "", 1}).at(171, event::WorkerStarted{first, "", ""});
  trace.at(180, event::OrderReceived{"stop", "user u1000 (uid 1000)"});
  CHECK(trace.marks("X") == std::vector<std::string>{"a job: waiting 0-10", "a job: attempt_0 10-66",
                                                     "a rank 3: start-up 11-20", "a rank 2: running 11-60",
                                                     "a rank 3: running 20-50", "a rank 3: stopping 50-60",
                                                     "a rank 2: stopping 60-65", "a job: waiting 66-70",
                                                     "a job: attempt_1 70-80", "a rank 2: running 71-80"});
  CHECK(trace.marks("i") == std::vector<std::string>{"a rank 3: failed 60", "a job: restarting 67", "a job: stop 80"});
  CHECK(trace.marks("C") == std::vector<std::string>{"a job: steps/s 40 0.5"});
}

TEST_CASE("nodes are brought on one clock", "[unit][timeline]") {
  Trace trace;
  for (const auto& [host, behind] : {std::pair{"a", 50}, std::pair{"b", 90}}) {
    trace.at(100, job(), host, behind).at(104, event::RoundCompleted{place(0, 0)}, host, behind);
    trace.at(108, event::AttemptEnded{""}, host, behind).at(109, event::JobEnded{}, host, behind);
  }
  // One clock of the day was set while the job ran: most events do not know of that.
  trace.at(110, event::Notice{"late"}, "b", 91);
  CHECK(trace.marks("X") == std::vector<std::string>{"a job: waiting 0-4", "b job: waiting 0-4", "a job: round 0 4-8",
                                                     "b job: round 0 4-8"});
}

TEST_CASE("what cannot be read is passed over", "[unit][timeline]") {
  Timeline timeline;
  CHECK(timeline.add("{}", json::parse("{}")).has_error());
  CHECK(json::parse(timeline.text()).at("traceEvents").empty());
  SECTION("a clock that goes backwards stands still") {
    Trace trace;
    trace.at(100, job()).at(110, event::RoundCompleted{place(0, 2)}).at(120, event::WorkerStarted{first, "", ""});
    trace.at(50, event::Stopping{"x"}).at(40, event::WorkerExited{first, 0, WorkerEnd::succeeded, "", ""});
    trace.at(130, event::AttemptEnded{"x"});
    CHECK(trace.marks("X") == std::vector<std::string>{"a job: waiting 0-10", "a job: round 0 10-30"});
  }
}

TEST_CASE("text that would end a page's script does not", "[unit][timeline]") {
  Trace trace;
  trace.at(1, event::OrderReceived{"</script>", "\xff"}, "<h>");
  CHECK(trace.timeline.text().find('<') == std::string::npos);
}
