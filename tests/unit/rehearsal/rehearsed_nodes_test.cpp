#include "launcher/core/rehearsal/rehearsed_nodes.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;
using What = RehearsalReport::What;

namespace {

constexpr TimePoint t0{1000s};
const RehearsalStart restart{t0, GroupRank{1}, 2, 7};

RehearsedNodes make(std::string_view text, int nodes = 2) {
  auto script = parse_rehearsal(text);
  if (!script) FAIL(script.error().message());
  RehearsedNodes made{*script, nodes};
  REQUIRE(made.step(cast::Begin{}, t0).size() == static_cast<std::size_t>(nodes));
  return made;
}

cast::Told placed(int node) { return {node, {}}; }
cast::Told away(int node, std::optional<Duration> back) {
  RehearsalReport report;
  report.what = What::away;
  report.restart = restart;
  report.back = back;
  report.faults = {{fmt::format("kill node={}", node), 1s, false, {}, {}, {}, 0, 0}};
  return {node, report};
}
cast::Told stopped(int node, Duration lasts) {
  RehearsalReport report;
  report.what = What::stopped;
  report.lasts = lasts;
  return {node, report};
}
cast::Told waiting(int node) {
  RehearsalReport report;
  report.what = What::waiting;
  return {node, report};
}
cast::Told ended(int node, RehearsedJob job, std::vector<RehearsedFault> faults = {}) {
  RehearsalReport report;
  report.what = What::ended;
  report.job = job;
  report.faults = std::move(faults);
  return {node, report};
}

std::string text_of(const std::vector<cast::Action>& actions) {
  std::string text;
  for (const cast::Action& action : actions) {
    if (const auto* start = std::get_if<cast::Start>(&action))
      text += fmt::format("start {}{};", start->node, start->start ? " again" : "");
    else if (const auto* end = std::get_if<cast::EndNode>(&action))
      text += fmt::format("end {};", end->node);
    else if (const auto* resume = std::get_if<cast::Resume>(&action))
      text += fmt::format("resume {};", resume->node);
    else
      text += fmt::format("{}: {};", std::get<cast::Finish>(action).result.exit_code,
                          std::get<cast::Finish>(action).result.text);
  }
  return text;
}

}  // namespace

TEST_CASE("a job of all nodes ends as they say", "[unit][rehearsal]") {
  auto nodes = make("expect ranks=4 restarts=1");
  REQUIRE(nodes.step(placed(0), t0).empty());
  REQUIRE(nodes.step(placed(1), t0).empty());
  REQUIRE(nodes.step(ended(0, {0, 1, 4}), t0 + 9s).empty());
  REQUIRE(nodes.step(cast::Gone{0, 0}, t0 + 9s).empty());
  REQUIRE(nodes.step(ended(1, {0, 1, 4}), t0 + 9s).empty());
  REQUIRE(text_of(nodes.step(cast::Gone{1, 0}, t0 + 9s)) == "0: rehearsal passed;");
  REQUIRE(nodes.step(cast::Wake{}, t0 + 10s).empty());
}

TEST_CASE("a node that a fault has ended is started again, and knows where it was", "[unit][rehearsal]") {
  auto nodes = make("at 1s kill node=1 back=3s");
  nodes.step(placed(0), t0);
  nodes.step(placed(1), t0);
  nodes.step(away(1, 3s), t0 + 1s);
  REQUIRE(!nodes.deadline());                          // it still is there,
  REQUIRE(nodes.step(cast::Wake{}, t0 + 5s).empty());  // also when its time has come
  const auto actions = nodes.step(cast::Gone{1, 137}, t0 + 6s);
  REQUIRE(actions == std::vector<cast::Action>{cast::Start{1, restart}});
  nodes.step(placed(1), t0 + 7s);
  const std::vector<RehearsedFault> faults{{"kill node=1 back=3s", 1s, false, 1s, 5s, 0, 0, 0}};
  nodes.step(ended(0, {0, 0, 4}, faults), t0 + 9s);
  nodes.step(cast::Gone{0, 0}, t0 + 9s);
  nodes.step(ended(1, {0, 0, 4}), t0 + 9s);
  REQUIRE(text_of(nodes.step(cast::Gone{1, 0}, t0 + 9s)) == "0: rehearsal passed;");
}

TEST_CASE("a node that stays away does not count", "[unit][rehearsal]") {
  auto nodes = make("at 1s kill node=1; expect ranks=2");
  nodes.step(placed(0), t0);
  nodes.step(placed(1), t0);
  nodes.step(away(1, {}), t0 + 1s);
  REQUIRE(nodes.step(cast::Gone{1, 137}, t0 + 1s).empty());
  REQUIRE(!nodes.deadline());
  nodes.step(ended(0, {0, 0, 2}, {{"kill node=1", 1s, false, 1s, 5s, 0, 0, 0}}), t0 + 9s);
  REQUIRE(text_of(nodes.step(cast::Gone{0, 0}, t0 + 9s)) == "0: rehearsal passed;");
}

TEST_CASE("nobody is started for a job that is over", "[unit][rehearsal]") {
  auto nodes = make("at 1s kill node=1 back=60s");
  nodes.step(placed(0), t0);
  nodes.step(placed(1), t0);
  nodes.step(away(1, 60s), t0 + 1s);
  nodes.step(cast::Gone{1, 137}, t0 + 1s);
  nodes.step(ended(0, {0, 0, 2}, {{"kill node=1 back=60s", 1s, false, 1s, 5s, 0, 0, 0}}), t0 + 9s);
  REQUIRE(!nodes.deadline());
  REQUIRE(text_of(nodes.step(cast::Gone{0, 0}, t0 + 9s)) == "0: rehearsal passed;");
}

TEST_CASE("who comes when the job is over is dismissed", "[unit][rehearsal]") {
  auto nodes = make("at 1s kill node=1 back=3s");
  nodes.step(placed(0), t0);
  nodes.step(placed(1), t0);
  nodes.step(away(1, 3s), t0 + 1s);
  nodes.step(cast::Gone{1, 137}, t0 + 1s);
  REQUIRE(nodes.deadline() == t0 + 4s);
  REQUIRE(text_of(nodes.step(cast::Wake{}, t0 + 4s)) == "start 1 again;");
  const std::vector<RehearsedFault> faults{{"kill node=1 back=3s", 1s, false, 1s, 5s, 0, 0, 0}};
  REQUIRE(text_of(nodes.step(ended(0, {0, 0, 2}, faults), t0 + 5s)) == "end 1;");
  REQUIRE(nodes.step(cast::Gone{0, 0}, t0 + 5s).empty());
  REQUIRE(nodes.step(ended(1, {143, 0, 0}), t0 + 5s).empty());
  REQUIRE(text_of(nodes.step(cast::Gone{1, 143}, t0 + 6s)) == "0: rehearsal passed;");
}

TEST_CASE("a node that could not be killed sees the job's end", "[unit][rehearsal]") {
  auto nodes = make("at 1s kill node=0 back=60s", 1);
  nodes.step(placed(0), t0);
  nodes.step(away(0, 60s), t0 + 1s);
  nodes.step(ended(0, {0, 0, 2}, {{"kill node=0 back=60s", 1s, true, {}, {}, {}, 0, 0}}), t0 + 9s);
  REQUIRE(text_of(nodes.step(cast::Gone{0, 0}, t0 + 9s)) == "1: rehearsal failed: kill node=0 had no target;");
}

TEST_CASE("all nodes may be away at once", "[unit][rehearsal]") {
  auto nodes = make("at 1s kill node=0 back=2s; at 1s kill node=1 back=3s");
  nodes.step(away(0, 2s), t0 + 1s);
  nodes.step(away(1, 3s), t0 + 1s);
  REQUIRE(nodes.step(cast::Gone{0, 137}, t0 + 1s).empty());
  REQUIRE(nodes.step(cast::Gone{1, 137}, t0 + 1s).empty());
  REQUIRE(text_of(nodes.step(cast::Wake{}, t0 + 3s)) == "start 0 again;");
  REQUIRE(text_of(nodes.step(cast::Wake{}, t0 + 4s)) == "start 1 again;");
}

TEST_CASE("a job of which nobody is left has failed", "[unit][rehearsal]") {
  auto nodes = make("at 1s kill node=0", 1);
  nodes.step(away(0, {}), t0 + 1s);
  REQUIRE(text_of(nodes.step(cast::Gone{0, 137}, t0 + 1s)) == "1: rehearsal failed: expected exit=0, was 1;");
}

TEST_CASE("the first bad end counts", "[unit][rehearsal]") {
  auto nodes = make("expect exit=0", 3);
  for (int node = 0; node < 3; ++node) nodes.step(placed(node), t0);
  nodes.step(ended(0, {0, 0, 3}), t0);
  nodes.step(cast::Gone{0, 0}, t0);
  nodes.step(cast::Gone{1, 137}, t0);  // without a word
  nodes.step(ended(2, {3, 0, 3}), t0);
  REQUIRE(text_of(nodes.step(cast::Gone{2, 3}, t0)) == "137: rehearsal failed: expected exit=0, was 137;");
}

TEST_CASE("a node that was lost without a fault does not end the others' job", "[unit][rehearsal]") {
  auto nodes = make("at 1s kill node=1 back=60s", 3);
  for (int node = 0; node < 3; ++node) nodes.step(placed(node), t0);
  nodes.step(away(1, 60s), t0 + 1s);
  nodes.step(cast::Gone{1, 137}, t0 + 1s);
  nodes.step(cast::Gone{2, 137}, t0 + 2s);
  REQUIRE(text_of(nodes.step(cast::Wake{}, t0 + 61s)) == "start 1 again;");
}

TEST_CASE("nobody is started once somebody ends the job", "[unit][rehearsal]") {
  auto nodes = make("at 1s kill node=1 back=3s");
  nodes.step(away(1, 3s), t0 + 1s);
  nodes.step(cast::Gone{1, 137}, t0 + 1s);
  REQUIRE(nodes.step(cast::EndsAll{130}, t0 + 2s).empty());
  REQUIRE(nodes.step(cast::Wake{}, t0 + 5s).empty());
  nodes.step(ended(0, {130, 0, 2}), t0 + 5s);
  REQUIRE(
      text_of(nodes.step(cast::Gone{0, 130}, t0 + 5s)).starts_with("130: rehearsal failed: expected exit=0, was 130"));
}

TEST_CASE("whoever ends a job of which nobody is there gets his code", "[unit][rehearsal]") {
  auto nodes = make("at 1s kill node=0 back=9s", 1);
  nodes.step(away(0, 9s), t0 + 1s);
  nodes.step(cast::Gone{0, 137}, t0 + 1s);
  REQUIRE(text_of(nodes.step(cast::EndsAll{130}, t0 + 2s)) == "130: rehearsal failed: expected exit=0, was 130;");
}

TEST_CASE("a job that is over waits for no stopped node", "[unit][rehearsal]") {
  auto nodes = make("expect exit=0");
  nodes.step(placed(0), t0);
  nodes.step(placed(1), t0);
  nodes.step(stopped(1, 60s), t0 + 1s);
  REQUIRE(!nodes.deadline());
  REQUIRE(text_of(nodes.step(ended(0, {0, 0, 1}), t0 + 9s)) == "end 1;resume 1;");
  SECTION("also if it stops a moment later") {
    REQUIRE(nodes.deadline() == t0 + 9s + resume_interval);
    REQUIRE(nodes.step(cast::Wake{}, t0 + 9s + resume_interval - 1ns).empty());
    REQUIRE(text_of(nodes.step(cast::Wake{}, t0 + 9s + resume_interval)) == "resume 1;");
  }
  SECTION("but not for ever") {
    nodes.step(cast::Wake{}, t0 + 61s);
    REQUIRE(!nodes.deadline());
  }
  nodes.step(cast::Gone{0, 0}, t0 + 61s);
  REQUIRE(text_of(nodes.step(cast::Gone{1, 143}, t0 + 61s)) == "0: rehearsal passed;");
}

TEST_CASE("a node that went on in time sees the job's end itself", "[unit][rehearsal]") {
  auto nodes = make("expect exit=0");
  nodes.step(placed(0), t0);
  nodes.step(placed(1), t0);
  nodes.step(stopped(1, 2s), t0 + 1s);
  REQUIRE(nodes.step(ended(0, {0, 0, 2}), t0 + 9s).empty());
}

TEST_CASE("a node that has lost its place does not see the job's end", "[unit][rehearsal]") {
  auto nodes = make("expect exit=0");
  nodes.step(placed(0), t0);
  nodes.step(placed(1), t0);
  nodes.step(stopped(1, 2s), t0 + 1s);
  nodes.step(waiting(1), t0 + 3s);
  REQUIRE(text_of(nodes.step(ended(0, {0, 0, 1}), t0 + 9s)) == "end 1;");
}

TEST_CASE("whoever ends the job lets stopped nodes go on, so that they hear of it", "[unit][rehearsal]") {
  auto nodes = make("expect exit=0");
  nodes.step(placed(0), t0);
  nodes.step(placed(1), t0);
  nodes.step(stopped(1, 60s), t0 + 1s);
  REQUIRE(text_of(nodes.step(cast::EndsAll{130}, t0 + 2s)) == "resume 1;");
  nodes.step(ended(1, {130, 0, 2}), t0 + 2s);
  nodes.step(ended(0, {130, 0, 2}), t0 + 2s);
  nodes.step(cast::Gone{0, 130}, t0 + 2s);
  REQUIRE(text_of(nodes.step(cast::Gone{1, 130}, t0 + 2s)) == "130: rehearsal failed: expected exit=0, was 130;");
}
