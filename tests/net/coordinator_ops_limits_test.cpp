// What an agent may say to those who look at its job, where it keeps to no limit itself, and what they may ask of all.
#include "tests/net/looked_job.hpp"

using namespace torchup;
using namespace torchup::looked_job;
using namespace std::chrono_literals;

namespace {

/// Of the metrics that it answers with.
std::uint64_t events_lost(Looked& job) {
  const std::string text = job.ask("GET", "/metrics")->body;
  const std::string name = "\ntorchup_events_lost_total ";
  const std::size_t at = text.find(name);
  REQUIRE(at != std::string::npos);
  return std::stoull(text.substr(at + name.size()));
}

std::vector<Answer> answers_of(const Agent& agent) {
  std::vector<Answer> list;
  for (const auto& message : agent.heard) {
    if (const auto* answer = std::get_if<Answer>(&message)) list.push_back(*answer);
  }
  return list;
}

std::string code_of(const std::string& body) { return json::parse(body).at("error").at("code"); }

}  // namespace

TEST_CASE("of an agent's events so many are taken, and the others are counted", "[net][ops]") {
  Looked job;
  const std::uint64_t before = json::parse(job.ask("GET", "/v1/jobs/a%2Fb")->body).at("seq");
  for (int i = 0; i < EventAllowance::burst; ++i) job.here.attendance->said(NodeEvent{R"({"event":"warning"})", 0});
  const auto taken = [&] {
    return json::parse(job.ask("GET", "/v1/jobs/a%2Fb")->body).at("seq").get<std::uint64_t>() - before;
  };
  REQUIRE(taken() == EventAllowance::burst);
  REQUIRE(events_lost(job) == 0);
  for (int i = 0; i < 1000; ++i) job.here.attendance->said(NodeEvent{R"({"event":"warning"})", 0});
  REQUIRE(taken() < 1000);  // however slow this machine is
  REQUIRE(taken() + events_lost(job) == EventAllowance::burst + 1000);
  const std::uint64_t lost = events_lost(job);
  job.elsewhere.attendance->said(NodeEvent{R"({"event":"warning"})", 7});  // has an allowance of its own
  REQUIRE(events_lost(job) == lost + 7);
  job.elsewhere.attendance->said(NodeEvent{R"({"event":"warning"})", 9});
  REQUIRE(events_lost(job) == lost + 9);
  job.elsewhere.attendance->said(NodeEvent{R"({"event":"warning"})", UINT64_MAX});
  REQUIRE(events_lost(job) < lost + 10'000'000);
}

TEST_CASE("so many questions of a node are open, and more are refused at once", "[net][ops]") {
  Looked job;
  const std::string seq = std::to_string(json::parse(job.ask("GET", "/v1/jobs/a%2Fb")->body).at("seq").get<int>());
  const auto waits = [&](const Agent& agent, std::uint64_t number) {
    agent.attendance->said(
        Ask{.number = number, .by = "u", .method = "GET", .target = "/v1/jobs/a%2Fb/events?wait_s=10&since=" + seq});
  };
  for (std::uint64_t number = 1; number <= open_questions_max; ++number) waits(job.here, number);
  job.run();
  REQUIRE(answers_of(job.here).empty());
  waits(job.here, 100);
  job.run();
  REQUIRE(answers_of(job.here).size() == 1);
  REQUIRE(answers_of(job.here).front().number == 100);
  REQUIRE(answers_of(job.here).front().status == 503);
  REQUIRE(code_of(answers_of(job.here).front().body) == "too_many_questions");
  waits(job.elsewhere, 1);  // the other node's are its own
  job.run();
  REQUIRE(answers_of(job.elsewhere).empty());
  job.onlookers.happened(run_id, R"({"event":"warning"})");  // they are answered, and there is room again
  job.run();
  REQUIRE(answers_of(job.here).size() == 1 + open_questions_max);
  job.here.heard.clear();
  job.here.attendance->said(Ask{.number = 101, .by = "u", .method = "GET", .target = "/v1/jobs/a%2Fb"});
  job.run();
  REQUIRE(answers_of(job.here).front().status == 200);
}
