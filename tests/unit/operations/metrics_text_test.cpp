#include "rendezvous/core/ops/metrics_text.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/sample_metrics.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

struct Family {
  std::string type;
  std::set<std::string> labels;
  int samples = 0;
};

/// Reads text format 0.0.4: a family is its HELP, its TYPE, then all its samples.
std::map<std::string, Family> read(const std::string& text) {
  static const std::regex sample{R"re(([a-z_0-9]+)(\{(.*)\})? (-?[0-9.e+-]+|NaN))re"};
  static const std::regex label{R"re(([a-z_]+)="((?:[^"\\]|\\["\\n])*)"(,|$))re"};
  std::map<std::string, Family> families;
  std::string current;
  std::istringstream lines{text};
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    if (line.starts_with("# HELP ")) {
      current = line.substr(7, line.find(' ', 7) - 7);
      REQUIRE_FALSE(families.contains(current));
      REQUIRE(line.size() > current.size() + 9);
      families[current] = {};
      continue;
    }
    Family& family = families.at(current);
    if (line.starts_with("# TYPE ")) {
      REQUIRE(line.starts_with("# TYPE " + current + " "));
      REQUIRE(family.samples == 0);
      family.type = line.substr(8 + current.size());
      continue;
    }
    std::smatch match;
    REQUIRE(std::regex_match(line, match, sample));
    std::string name = match[1];
    if (family.type == "histogram") name = name.substr(0, name.rfind('_'));
    REQUIRE(name == current);
    ++family.samples;
    std::string labels = match[3];
    std::size_t bytes = 0;
    for (std::sregex_iterator it{labels.begin(), labels.end(), label}, end; it != end; ++it) {
      family.labels.insert((*it)[1]);
      bytes += static_cast<std::size_t>(it->length());
    }
    REQUIRE(bytes == labels.size());
  }
  return families;
}

std::set<std::string> words(std::string_view list) {
  std::set<std::string> all;
  std::istringstream names{std::string{list}};
  for (std::string name; std::getline(names, name, ',');) all.insert(name);
  return all;
}

std::string type_of(MetricType type) {
  return type == MetricType::gauge ? "gauge" : type == MetricType::counter ? "counter" : "histogram";
}

int lines_with(const std::string& text, const std::string& what) {
  int count = 0;
  std::istringstream lines{text};
  for (std::string line; std::getline(lines, line);) count += line.find(what) != std::string::npos ? 1 : 0;
  return count;
}

CoordinatorNumbers with_jobs(std::size_t count) {
  CoordinatorNumbers coordinator;
  for (std::size_t i = 0; i < count; ++i) {
    coordinator.jobs.push_back({.run_id = "job" + std::to_string(i), .phase = "running"});
  }
  return coordinator;
}

}  // namespace

TEST_CASE("processes tell of every metric in the table, as it says, and of no other", "[unit][metrics_text]") {
  std::map<std::string, Family> told;
  for (const std::string& text :
       {process_metrics(sample_process()), coordinator_metrics(sample_coordinator()), agent_metrics(sample_agent())}) {
    for (auto& [name, family] : read(text)) REQUIRE(told.emplace(name, std::move(family)).second);
  }
  std::set<std::string> names;
  for (const Metric& metric : all_metrics()) {
    const std::string name{metric.name};
    INFO(name);
    names.insert(name);
    REQUIRE(told.contains(name));
    REQUIRE(told[name].type == type_of(metric.type));
    REQUIRE(told[name].labels ==
            (metric.type == MetricType::histogram ? std::set<std::string>{"le"} : words(metric.labels)));
    REQUIRE((metric.type == MetricType::counter) == name.ends_with("_total"));
  }
  REQUIRE(names.size() == all_metrics().size());
  REQUIRE(told.size() == names.size());
}

TEST_CASE("a label's value stays one, whatever it is", "[unit][metrics_text]") {
  REQUIRE(label_text("a/b <c> 節") == "a/b <c> 節");
  REQUIRE(label_text("a\"b\\c") == "a\\\"b\\\\c");
  REQUIRE(label_text("a\nb\xff") == "a\\\\nb\\\\xff");
  CoordinatorNumbers coordinator;
  coordinator.jobs.push_back({.run_id = "x\"} 1\ntorchup_agents 7\n#\xff", .phase = "running"});
  const std::string text = coordinator_metrics(coordinator);
  REQUIRE(read(text).at("torchup_agents").samples == 1);
  REQUIRE(lines_with(text, "torchup_agents 7") == lines_with(text, "run_id="));
}

TEST_CASE("a job costs as many lines whatever its size", "[unit][metrics_text]") {
  const auto lines = [](std::size_t jobs) { return lines_with(coordinator_metrics(with_jobs(jobs)), "run_id="); };
  REQUIRE(lines(1) <= 60);
  REQUIRE(lines(3) == 3 * lines(1));
}

TEST_CASE("of ended jobs is told for a while", "[unit][metrics_text]") {
  CoordinatorNumbers coordinator = with_jobs(3);
  coordinator.jobs[0].ended_for = ended_job_told;
  coordinator.jobs[1].ended_for = ended_job_told + 1ns;
  const std::string text = coordinator_metrics(coordinator);
  REQUIRE(text.find("\"job0\"") != std::string::npos);
  REQUIRE(text.find("\"job1\"") == std::string::npos);
  REQUIRE(text.find("\"job2\"") != std::string::npos);
  REQUIRE(text.find("torchup_jobs_not_shown 0\n") != std::string::npos);
}

TEST_CASE("of too many jobs those are told of that go on", "[unit][metrics_text]") {
  CoordinatorNumbers coordinator = with_jobs(jobs_told_max + 2);
  coordinator.jobs[0].ended_for = 2s;
  coordinator.jobs[1].ended_for = 1s;
  coordinator.jobs[2].ended_for = 3s;
  const std::string text = coordinator_metrics(coordinator);
  REQUIRE(read(text).at("torchup_job_phase").samples == jobs_told_max);
  REQUIRE(text.find("\"job1\"") != std::string::npos);
  REQUIRE(text.find("\"job0\"") == std::string::npos);
  REQUIRE(text.find("\"job2\"") == std::string::npos);
  REQUIRE(text.find("torchup_jobs_not_shown 2\n") != std::string::npos);
}

TEST_CASE("a job without steps tells of none", "[unit][metrics_text]") {
  CoordinatorNumbers coordinator = with_jobs(1);
  REQUIRE_FALSE(read(coordinator_metrics(coordinator)).contains("torchup_job_step_age_seconds"));
  coordinator.jobs[0].step = 41200;
  coordinator.jobs[0].step_age_s = 0.25;
  const std::string text = coordinator_metrics(coordinator);
  REQUIRE(text.find("torchup_job_step{run_id=\"job0\"} 41200\n") != std::string::npos);
  REQUIRE(text.find("torchup_job_step_age_seconds{run_id=\"job0\"} 0.25\n") != std::string::npos);
}

TEST_CASE("late workers are told of up to a limit", "[unit][metrics_text]") {
  CoordinatorNumbers coordinator;
  coordinator.late_workers.emplace_back(RunId{"a"}, std::vector<LateWorker>(late_workers_told_max + 5));
  REQUIRE(read(coordinator_metrics(coordinator)).at("torchup_worker_late_seconds").samples == late_workers_told_max);
}

TEST_CASE("turns of the loop are counted where they belong", "[unit][metrics_text]") {
  TurnHistogram turns;
  turns.add(0ns);
  turns.add(10us);        // as long as the first step
  turns.add(10us + 1ns);  // longer
  turns.add(1s);
  turns.add(1s + 1ns);
  CoordinatorNumbers coordinator{.turns = turns};
  const std::string text = coordinator_metrics(coordinator);
  const auto has = [&](const std::string& line) {
    return text.find("torchup_loop_turn_seconds" + line + "\n") != std::string::npos;
  };
  REQUIRE(has("_bucket{le=\"0.00001\"} 2"));
  REQUIRE(has("_bucket{le=\"0.000025\"} 3"));
  REQUIRE(has("_bucket{le=\"0.5\"} 3"));
  REQUIRE(has("_bucket{le=\"1\"} 4"));
  REQUIRE(has("_bucket{le=\"+Inf\"} 5"));
  REQUIRE(has("_count 5"));
  REQUIRE(text.find("_sum 2.00002") != std::string::npos);
}

TEST_CASE("requests of the store are counted by what was asked", "[unit][metrics_text]") {
  std::set<std::size_t> codes;
  for (const StoreOperation& operation : store_operations) {
    codes.insert(static_cast<std::size_t>(operation.query));
    REQUIRE(*codes.rbegin() < query_codes);
  }
  REQUIRE(codes.size() == store_operations.size());
  CoordinatorNumbers coordinator;
  coordinator.store.requests_of[static_cast<std::size_t>(Query::wait_get)] = 7;
  const std::string text = coordinator_metrics(coordinator);
  REQUIRE(text.find("torchup_store_requests_total{operation=\"wait_get\"} 7\n") != std::string::npos);
  REQUIRE(text.find("torchup_store_requests_total{operation=\"get\"} 0\n") != std::string::npos);
}

TEST_CASE("12,500 nodes are small to those who look", "[unit][metrics_text]") {
  const JobView view = large_view(12'500);
  JobPage page{RunId{"large"}, "head"};
  const Moment now{TimePoint{} + 60s, 1'700'000'000'000'000};
  page.show(view, now);
  for (const JobView::Node& node : view.nodes) {
    page.report(NodeId{node.node}, {.ranks = "rrrrrrrr", .steps = StepReport{41'199, 41'200, 3'100, 200ms}}, now.now);
  }
  REQUIRE(page.snapshot(Right::control, now, 1).size() < (std::size_t{4} << 20));
  REQUIRE(jobs_text({page.row(now, 1)}, Right::read, now).size() < 10 * 1024);
  const JobNumbers numbers = page.numbers(now);
  REQUIRE(numbers.ranks[rank_state_index('r')] == 100'000);
  REQUIRE(coordinator_metrics({.jobs = {numbers}}).size() < 20 * 1024);
  // Five hundred of them have reported since: a patch is of them alone.
  const std::uint64_t before = page.revision();
  for (std::size_t i = 0; i < 500; ++i) {
    page.report(NodeId{view.nodes[i].node}, {.ranks = "rrrrrrrw", .steps = StepReport{41'200, 41'201}}, now.now);
  }
  REQUIRE_FALSE(page.prepare(499));
  REQUIRE(page.prepare(1));
  REQUIRE(page.changes(Right::control, before, now, 1)->size() < 500 * 100);
}
