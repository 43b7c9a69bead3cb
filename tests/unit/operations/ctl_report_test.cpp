#include <catch2/catch.hpp>

#include "launcher/ctl/report_data.hpp"

namespace torchup {
namespace {

json event(const std::string& name, const std::string& time, json fields = json::object()) {
  fields.update({{"schema", 1}, {"time", "2026-11-21T04:00:" + time + ".000000Z"}, {"host", "h"}, {"event", name}});
  return fields;
}

}  // namespace

TEST_CASE("a report has the job as it was at the end, and its events", "[unit][ctl]") {
  ReportData report;
  for (const char* node : {"n0", "n1"})
    report.add(node, event("job_started", "00",
                           {{"run_id", "a"},
                            {"name", "t.py"},
                            {"min_nodes", 2},
                            {"max_nodes", 2},
                            {"max_restarts", 1},
                            {"local_world_size", 2}}));
  report.add("n0",
             event("round_completed", "01",
                   {{"round", 0}, {"group_rank", 0}, {"first_rank", 0}, {"world_size", 4}, {"restart_count", 0}}));
  report.add("n1",
             event("round_completed", "01", {{"round", 0}, {"group_rank", 1}, {"first_rank", 2}, {"world_size", 4}}));
  report.add("n0", event("worker_started", "02", {{"local_rank", 0}}));
  report.add("n0", event("worker_started", "02", {{"local_rank", 9}}));  // a stranger's number
  report.add("n0", event("progress", "03", {{"step_min", 4}, {"step_max", 5}, {"steps_per_second", 2.5}}));
  report.add("n1", event("worker_exited", "04", {{"local_rank", 1}, {"end", "failed"}, {"last_step", 5}}));
  report.add("n1", event("incident_recorded", "05", {{"path", "/x/i.json"}, {"summary", "rank 3: </script>"}}));
  report.add("n0",
             event("job_ended", "06", {{"exit_code", 1}, {"reason", "rank 3 failed"}, {"failures", json::array()}}));
  REQUIRE(report.incident_paths() == std::vector<std::string>{"/x/i.json"});
  report.add_incident_file("/x/i.json", {{"last_lines", {"bye"}}, {"summary", "another"}});

  const json all = json::parse(report.data(R"({"rank_seconds": 24.0, "useful": 3.0})"));
  const json& job = all["snapshot"];
  REQUIRE(job["run_id"] == "a");
  REQUIRE(job["phase"] == "ended");
  REQUIRE(job["started"] == "2026-11-21T04:00:00.000000Z");
  REQUIRE(job["ended"] == "2026-11-21T04:00:06.000000Z");
  REQUIRE(job["verdict"]["exit_code"] == 1);
  REQUIRE(job["nodes"]["n0"]["ranks"] == "r-");
  REQUIRE(job["nodes"]["n1"]["ranks"] == "-x");
  REQUIRE(job["nodes"]["n1"]["first_rank"] == 2);
  REQUIRE(job["ranks"]["failed"] == 1);
  REQUIRE(job["step"]["max"] == 5);
  REQUIRE(job["ledger"]["useful"] == 3.0);
  REQUIRE(job["incidents"][0]["last_lines"][0] == "bye");
  REQUIRE(job["incidents"][0]["summary"] == "rank 3: </script>");  // the event's own word stays
  REQUIRE(all["events"].size() == 10);
  REQUIRE(all["events"][9]["seq"] == 10);
  REQUIRE(all["lost"] == 0);
}

TEST_CASE("what all nodes tell of is there once, and steps are those of all nodes", "[unit][ctl]") {
  ReportData report;
  const auto steps = [](int least, int most, double rate) {
    return event("progress", "02", {{"step_min", least}, {"step_max", most}, {"steps_per_second", rate}});
  };
  for (const char* node : {"n0", "n1", "gone"}) report.add(node, event("round_completed", "01", {{"round", 0}}));
  report.add("gone", steps(1, 2, 9.0));
  for (const char* node : {"n0", "n1"}) {
    report.add(node, event("membership_changed", "03", {{"reason", "a node has gone"}}));
    report.add(node, event("round_completed", "04", {{"round", 1}}));
  }
  report.add("n0", steps(40, 44, 2.5));
  report.add("n1", steps(38, 41, 2.0));
  json job = json::parse(report.data("{}"))["snapshot"];
  CHECK(job["membership_changes"] == 1);
  CHECK(job["step"] == json{{"min", 38}, {"max", 44}, {"per_second", 2.5}});
  report.add("n1", event("membership_changed", "05", {{"reason", "restarted"}}));
  job = json::parse(report.data("{}"))["snapshot"];
  CHECK(job["membership_changes"] == 2);
}

TEST_CASE("of a long job the newest events are in the report, and the others are counted", "[unit][ctl]") {
  ReportData report;
  for (std::size_t i = 0; i < reported_events_max + 3; ++i) report.add("n", event("notice", "00"));
  const json all = json::parse(report.data("null"));
  REQUIRE(all["events"].size() == reported_events_max);
  REQUIRE(all["events"][0]["seq"] == 4);
  REQUIRE(all["lost"] == 3);
}

TEST_CASE("a report of anything is made", "[unit][ctl]") {
  ReportData report;
  report.add("n", json::array());
  report.add("n", event("job_started", "00", {{"local_world_size", 1'000'000'000}, {"run_id", 3}}));
  report.add("n", event("worker_exited", "00", {{"local_rank", -1}}));
  report.add_incident_file("x", json::array());
  REQUIRE(json::parse(report.data("no JSON"))["snapshot"]["nodes"]["n"]["ranks"].get<std::string>().size() <= 65536);
}

}  // namespace torchup
