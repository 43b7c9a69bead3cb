#include "rendezvous/core/ops/job_page.hpp"

#include <catch2/catch.hpp>
#include <vector>

#include "tests/unit/operations/shown_job.hpp"

using namespace torchup;
using namespace std::chrono_literals;
using nlohmann::json;

TEST_CASE("a snapshot has the members that are promised", "[unit][job_page]") {
  JobPage page{RunId{"train"}, "head"};
  page.set_name("train.py");
  page.show(running({node("a_1_0", 0), node("b_1_0", 1)}), at(1s));
  page.report(NodeId{"a_1_0"}, report("rw", 40), TimePoint{} + 9s);
  const json job = snapshot(page);
  REQUIRE(names(job) ==
          std::set<std::string>{"schema",      "run_id",    "name",          "phase",        "started",
                                "ended",       "now",       "seq",           "round",        "world_size",
                                "min_nodes",   "max_nodes", "restart_count", "max_restarts", "membership_changes",
                                "master",      "waits_for", "last",          "step",         "ranks",
                                "node_states", "ledger",    "incidents",     "verdict",      "nodes"});
  REQUIRE(job["schema"] == 1);
  REQUIRE(job["run_id"] == "train");
  REQUIRE(job["name"] == "train.py");
  REQUIRE(job["started"] == "2023-11-14T22:13:21.000000Z");
  REQUIRE(job["ended"].is_null());
  REQUIRE(job["now"] == "2023-11-14T22:13:30.000000Z");
  REQUIRE(job["seq"] == 7);
  REQUIRE(job["round"] == 3);
  REQUIRE(job["max_restarts"] == 3);
  REQUIRE(job["waits_for"].is_null());
  REQUIRE(job["step"] == json::parse(R"({"min": 39, "max": 40, "per_second": 3.1, "age_s": 1.2})"));
  REQUIRE(job["ranks"]["running"] == 1);
  REQUIRE(job["ranks"]["waiting"] == 1);
  REQUIRE(job["ranks"]["unknown"] == 2);
  REQUIRE(job["node_states"]["seated"] == 2);
  REQUIRE(job["ledger"]["useful"] == 1.5);
  REQUIRE(job["nodes"]["a_1_0"] == json::parse(R"({"host": "host-a_1_0", "state": "seated", "reason": null,
      "group_rank": 0, "first_rank": 0, "local_world_size": 2, "ranks": "rw", "step": 40, "agent": "torchup"})"));
  REQUIRE(job["nodes"]["b_1_0"]["ranks"] == "??");
  REQUIRE(job["nodes"]["b_1_0"]["step"].is_null());
}

TEST_CASE("what is no member of a job stands under its host", "[unit][job_page]") {
  JobPage page{RunId{"a"}, "head"};
  JobView view = running({node("a_1_0", 0)});
  view.nodes.push_back({.host = "lost", .state = "missing"});
  for (int i = 0; i < 2; ++i) view.nodes.push_back({.host = "old", .state = "seated", .torchruns = true});
  page.show(view, at(0s));
  const json job = snapshot(page);
  REQUIRE(names(job["nodes"]) == std::set<std::string>{"a_1_0", "lost", "old", "old (2)"});
  REQUIRE(job["nodes"]["old"]["agent"] == "torchrun");
  REQUIRE(job["node_states"]["missing"] == 1);
  page.show(view, at(1s));
  REQUIRE(names(snapshot(page)["nodes"]).size() == 4);
}

TEST_CASE("a job that only torchrun's agents know has no counts", "[unit][job_page]") {
  JobPage page{RunId{"a"}, "head"};
  page.show({.phase = "running", .nodes = {{.host = "old", .state = "seated", .torchruns = true}}}, at(0s));
  const json job = snapshot(page);
  for (const char* name : {"min_nodes", "max_nodes", "restart_count", "max_restarts", "membership_changes"}) {
    REQUIRE(job[name].is_null());
  }
}

TEST_CASE("steps are those of the round, their pace the median of its nodes", "[unit][job_page]") {
  JobPage page{RunId{"a"}, "head"};
  JobView view = running({node("a", 0), node("b", 1), node("c", 2), node("spare", 3, "standby")});
  view.nodes.back().group_rank.reset();
  page.show(view, at(0s));
  page.report(NodeId{"a"}, report("rr", 10, 1000, 3s), TimePoint{} + 5s);
  page.report(NodeId{"b"}, report("rr", 20, 2000, 1s), TimePoint{} + 5s);
  page.report(NodeId{"c"}, report("rr", 15, 9000, 2s), TimePoint{} + 5s);
  page.report(NodeId{"spare"}, report("dd", 99, 99, 0s), TimePoint{} + 5s);
  const json step = snapshot(page)["step"];
  REQUIRE(step == json::parse(R"({"min": 9, "max": 20, "per_second": 2.0, "age_s": 6.0})"));
  REQUIRE(snapshot(page)["ranks"]["exited"] == 0);
  view.world_size = 0;  // between two rounds all count
  page.show(view, at(6s));
  REQUIRE(snapshot(page)["step"]["max"] == 99);
}

TEST_CASE("an agent's report is taken as a stranger's", "[unit][job_page]") {
  JobPage page{RunId{"a"}, "head"};
  page.show(running({node("a", 0), node("b", 1), node("c", 2)}), at(0s));
  NodeReport hostile =
      report("r\"", std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min());
  hostile.spent.fill(std::numeric_limits<std::int64_t>::max());
  page.report(NodeId{"a"}, hostile, TimePoint{});
  page.report(NodeId{"b"}, report("rrrrrrrrrrr", 1), TimePoint{});
  page.report(NodeId{"c"}, report("", 1), TimePoint{});
  page.report(NodeId{"nobody"}, report("rr", 1), TimePoint{});
  const json job = snapshot(page);
  REQUIRE(job["nodes"]["a"]["ranks"] == "r?");
  REQUIRE(job["nodes"]["b"]["ranks"] == "rr");
  REQUIRE(job["nodes"]["c"]["ranks"] == "??");
  REQUIRE(job["nodes"].size() == 3);
}

TEST_CASE("whatever strangers typed is whole, and ends no script", "[unit][job_page]") {
  const std::string evil = "a/\"<b>\\\n</script>\x01\u2028節";
  JobPage page{RunId{evil}, evil, 17};
  page.set_name(evil);
  JobView view = running({node(evil, 0)});
  view.nodes[0].reason = evil + "\xff";
  view.last = view.waits_for = evil;
  page.show(view, at(0s));
  const std::string text = page.snapshot(Right::control, at(0s), 0);
  REQUIRE(text.find('<') == std::string::npos);
  const json job = json::parse(text);
  REQUIRE(job["run_id"] == evil);
  REQUIRE(job["name"] == evil);
  REQUIRE(job["last"] == evil);
  REQUIRE(job["nodes"][evil]["host"] == "host-" + evil);
  REQUIRE(job["nodes"][evil]["reason"] == evil + "\ufffd");
  const json row = json::parse(page.row(at(0s), 0));
  REQUIRE(row["run_id"] == evil);
  REQUIRE(row["host"] == evil);
  REQUIRE(row["pid"] == 17);
}

TEST_CASE("a row of the list has numbers, and nothing that grows", "[unit][job_page]") {
  JobPage page{RunId{"a"}, "head"};
  JobView view = running({node("a", 0)});
  view.waits_for = view.last = std::string(100'000, 'x');
  view.verdict = Verdict{.exit_code = 1, .reason = std::string(100'000, 'y'), .failures = {WorkerFailure{}}};
  page.show(view, at(1s));
  json row = json::parse(page.row(at(2s), 5));
  for (const char* name : {"nodes", "incidents", "ledger", "pid"}) REQUIRE_FALSE(row.contains(name));
  REQUIRE(row["step"].is_null());
  REQUIRE(row["steps_per_second"].is_null());
  REQUIRE(row["host"] == "head");
  REQUIRE(row["phase"] == "running");
  REQUIRE(row["seq"] == 5);
  REQUIRE(row["last"].get<std::string>().size() == listed_text_bytes_max);
  REQUIRE(names(row["verdict"]) == std::set<std::string>{"exit_code", "reason"});
  page.report(NodeId{"a"}, report("rr", 41), TimePoint{} + 1s);
  row = json::parse(page.row(at(2s), 5));
  REQUIRE(row["step"] == 41);
  REQUIRE(row["steps_per_second"] == 3.1);
  REQUIRE(page.row(at(2s), 5).size() < 4096);
}

TEST_CASE("a list of jobs is whole, and a change of itself", "[unit][job_page]") {
  const json page = json::parse(jobs_text({R"({"run_id":"a"})", R"({"run_id":"b"})"}, Right::read, at(0s)));
  REQUIRE(names(page) == std::set<std::string>{"schema", "right", "now", "jobs"});
  REQUIRE(page["right"] == "read");
  REQUIRE(page["jobs"].size() == 2);
  REQUIRE(json::parse(jobs_text({}, Right::control, at(0s)))["jobs"] == json::array());
  json patched = page;
  patched.merge_patch(json::parse(jobs_text({}, Right::read, at(1s))));
  REQUIRE(patched["jobs"].empty());
}

TEST_CASE("what workers wrote is for those alone who may control", "[unit][job_page]") {
  JobPage page{RunId{"a"}, "head"};
  REQUIRE_FALSE(json::parse(page.snapshot(Right::read, at(0s), 0)).contains("withheld"));
  JobView view = running({node("a", 0)});
  view.verdict =
      Verdict{.exit_code = 1, .reason = "rank 0 failed", .failures = {{.exit_code = 7, .message = "SECRET"}}};
  page.show(view, at(0s));
  page.add_incident(3, R"({"event":"incident_recorded","last_lines":["SECRET"]})");
  const json whole = snapshot(page);
  REQUIRE(whole["verdict"]["failures"][0]["message"] == "SECRET");
  REQUIRE(whole["incidents"][0]["last_lines"][0] == "SECRET");
  REQUIRE_FALSE(whole.contains("withheld"));
  const std::string text = page.snapshot(Right::read, at(0s), 0);
  REQUIRE(text.find("SECRET") == std::string::npos);
  const json cut = json::parse(text);
  REQUIRE(cut["withheld"] == true);
  REQUIRE(cut["verdict"]["failures"][0]["exit_code"] == 7);
  REQUIRE(cut["incidents"][0]["seq"] == 3);
  REQUIRE(page.changes(Right::read, 1, at(0s), 0)->find("SECRET") == std::string::npos);
}

TEST_CASE("the last incidents are kept, with their numbers", "[unit][job_page]") {
  JobPage page{RunId{"a"}, "head"};
  page.add_incident(1, "{}");
  REQUIRE(snapshot(page)["incidents"] == json::parse(R"([{"seq": 1}])"));
  for (std::uint64_t seq = 2; seq <= incidents_shown_max + 3; ++seq) {
    page.add_incident(seq, R"({"host":"h","summary":"s"})");
  }
  const json incidents = snapshot(page)["incidents"];
  REQUIRE(incidents.size() == incidents_shown_max);
  REQUIRE(incidents.front()["seq"] == 4);
  REQUIRE(incidents.back() == json::parse(R"({"seq": 19, "host": "h", "summary": "s"})"));
  REQUIRE(page.numbers(at(0s)).incidents == incidents_shown_max + 3);
}

TEST_CASE("an incident has the number that it was given", "[unit][job_page]") {
  JobPage page{RunId{"a"}, "head"};
  page.add_incident(3, R"({"summary":"s","seq":99})");
  page.add_incident(4, R"({"s\u0065q":99,"summary":"s"})");
  REQUIRE(snapshot(page)["incidents"][0]["seq"] == 3);
  REQUIRE(snapshot(page)["incidents"][1]["seq"] == 4);
}

TEST_CASE("what nodes that have gone had cost the job is not forgotten", "[unit][job_page]") {
  JobPage page{RunId{"a"}, "head"};
  page.show(running({node("a", 0), node("b", 1)}), at(0s));
  page.report(NodeId{"a"}, report("rr", 1), TimePoint{});
  page.report(NodeId{"b"}, report("rr", 1), TimePoint{});
  REQUIRE(snapshot(page)["ledger"]["useful"] == 3.0);
  page.show(running({node("b", 0)}), at(1s));
  REQUIRE(snapshot(page)["ledger"]["useful"] == 3.0);
  REQUIRE(snapshot(page)["ledger"]["basis"] == "steps");
}

TEST_CASE("what a node had cost that comes back counts once", "[unit][job_page]") {
  JobPage page{RunId{"a"}, "head"};
  page.show(running({node("x_1_0", 0), node("y_1_0", 1)}), at(0s));
  for (const char* id : {"x_1_0", "y_1_0"}) page.report(NodeId{id}, report("rr", 1), TimePoint{});
  page.show(running({node("y_1_0", 0)}), at(1s));
  page.show(running({node("y_1_0", 0), node("x_1_1", 1)}), at(2s));  // the same agent, in another life
  REQUIRE(snapshot(page)["ledger"]["useful"] == 3.0);
  page.report(NodeId{"x_1_1"}, report("rr", 2), TimePoint{} + 2s);  // of all its lives
  REQUIRE(snapshot(page)["ledger"]["useful"] == 3.0);
}

TEST_CASE("of nodes that have gone so many may come back, and none is forgotten", "[unit][job_page]") {
  JobPage page{RunId{"a"}, "head"};
  for (std::size_t number = 0; number <= gone_nodes_max; ++number) {
    const std::string id = "n" + std::to_string(number) + "_1_0";
    page.show(running({node(id, 0)}), at(0s));
    page.report(NodeId{id}, report("rr", 1), TimePoint{});
  }
  page.show(running({}), at(1s));
  REQUIRE(snapshot(page)["ledger"]["useful"] == 1.5 * (gone_nodes_max + 1));
}

TEST_CASE("another job of the run id has nothing of the one before", "[unit][job_page]") {
  JobPage page{RunId{"a"}, "head"};
  page.show(running({node("a", 0)}), at(0s));
  page.report(NodeId{"a"}, report("rr", 1), TimePoint{});
  page.add_incident(1, "{}");
  page.count_order("restart");
  JobView over = running({});
  over.phase = "ended";
  over.verdict = Verdict{.reason = "all workers succeeded"};
  page.show(over, at(5s));
  REQUIRE(page.ended_at() == TimePoint{} + 5s);
  REQUIRE(snapshot(page)["ended"] == "2023-11-14T22:13:25.000000Z");
  REQUIRE(snapshot(page)["verdict"]["exit_code"] == 0);
  page.show(over, at(6s));
  REQUIRE(page.ended_at() == TimePoint{} + 5s);
  page.show(running({node("b", 0)}), at(9s));
  REQUIRE_FALSE(page.ended_at());
  const json job = snapshot(page);
  REQUIRE(job["started"] == "2023-11-14T22:13:29.000000Z");
  REQUIRE(job["ended"].is_null());
  REQUIRE(job["verdict"].is_null());
  REQUIRE(job["incidents"].empty());
  REQUIRE(job["ledger"]["rank_seconds"] == 0.0);
  REQUIRE(page.numbers(at(9s)).orders.empty());
}
