// What goes by the link for those who look at a job and steer it.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/support/linked.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

constexpr Placement place_among(int nodes) {
  return {.round = Round{3}, .group_world_size = nodes, .world_size = 4 * nodes, .master_port = Port{1}};
}
const Ask question{.number = 4, .control = true, .by = "ada", .method = "GET", .target = "/v1/jobs/a"};

/// With a place in a job of so many nodes.
struct Linked : test::Linked {
  explicit Linked(int nodes = 2) {
    connect();
    say(Join{.node = NodeId{"n"}, .terms = {.lease = 10s}});
    hear(Placed{place_among(nodes)});
    told.clear();
    written.clear();
  }
  template <class T>
  [[nodiscard]] std::vector<T> all_written() const {
    std::vector<T> found;
    for (const AgentFrame& frame : written) {
      if (const T* one = std::get_if<T>(&frame)) found.push_back(*one);
    }
    return found;
  }
  [[nodiscard]] int reports() const {
    const auto alive = all_written<KeepAlive>();
    return static_cast<int>(std::ranges::count_if(alive, [](const KeepAlive& each) { return each.node.has_value(); }));
  }
  /// The node reports of the keep-alives in that time, while what the node has to tell is this.
  int reports_in(Duration time, const std::string& letters) {
    written.clear();
    for (const TimePoint end = now + time; now < end;) {
      step(link::ReportNode{{.ranks = letters, .beats = beats++}});
      now = std::min(end, link.deadline().value());
      step(link::Wake{});
      const auto alive = all_written<KeepAlive>();
      if (!alive.empty()) hear(KeepAliveAnswer{alive.back().number});
    }
    return reports();
  }

  std::uint64_t beats = 1;
};

}  // namespace

TEST_CASE("a node's report goes with keep-alives, once a second", "[unit][link]") {
  Linked agent;
  const int reports = agent.reports_in(30s, "rrrr");
  REQUIRE((reports >= 29 && reports <= 31));
  SECTION("the newest one, and each once") {
    agent.written.clear();
    agent.step(link::ReportNode{{.ranks = "rrrr", .beats = 7}});
    agent.step(link::ReportNode{{.ranks = "rrrh", .beats = 8}});
    for (int i = 0; i < 3; ++i) {
      agent.now = agent.link.deadline().value();
      agent.step(link::Wake{});
    }
    int told = 0;
    for (const KeepAlive& alive : agent.all_written<KeepAlive>()) {
      if (!alive.node) continue;
      ++told;
      REQUIRE(*alive.node == NodeReport{.ranks = "rrrh", .beats = 8});
    }
    REQUIRE(told == 1);
  }
}

TEST_CASE("of many nodes each reports more seldom, unless a rank's letter has changed", "[unit][link]") {
  Linked few{ReportPacing::many_nodes};
  REQUIRE(few.reports_in(30s, "rrrr") >= 29);
  Linked many{ReportPacing::many_nodes + 1};
  many.reports_in(10s, "rrrr");
  const int reports = many.reports_in(30s, "rrrr");
  REQUIRE((reports >= 2 && reports <= 3));
  REQUIRE(many.reports_in(2s, "rrrx") >= 1);
  REQUIRE(many.reports_in(5s, "rrrx") == 0);
  many.reconnect();  // to a coordinator that has heard nothing
  REQUIRE(many.reports() == 1);
}

TEST_CASE("a short lease makes no more reports", "[unit][link]") {
  ReportPacing pacing;
  int taken = 0;
  for (int tick = 0; tick < 100; ++tick) {
    pacing.set({.ranks = tick % 2 == 0 ? "r" : "w"});
    taken += pacing.take(2, TimePoint{} + tick * 200ms).has_value();
  }
  REQUIRE(taken == 20);
}

TEST_CASE("an answer that would fill the way becomes a short one", "[unit][link]") {
  Answer answer{.number = 7, .type = "text/plain", .body = std::string(answer_body_bytes_max, 'x'), .offset = 3};
  const Answer whole = answer;
  keep_room(answer, answers_unsent_bytes_max - answer_body_bytes_max);
  REQUIRE(answer == whole);
  keep_room(answer, answers_unsent_bytes_max - answer_body_bytes_max + 1);
  REQUIRE(answer.number == 7);
  REQUIRE(answer.status == 503);
  REQUIRE(answer.body.size() < 128);
  REQUIRE_FALSE(answer.offset);
}

TEST_CASE("of events 10 a second are told, and those that are lost are counted", "[unit][link]") {
  Linked agent;
  for (int i = 0; i < 60; ++i) agent.say(NodeEvent{.line = std::to_string(i)});
  const auto first = agent.all_written<NodeEvent>();
  REQUIRE(first.size() == EventAllowance::burst);
  REQUIRE(first.back() == NodeEvent{"49", 0});
  agent.written.clear();
  agent.now += 1s;
  for (int i = 0; i < 20; ++i) agent.say(NodeEvent{.line = "later"});
  const auto second = agent.all_written<NodeEvent>();
  REQUIRE(second.size() == EventAllowance::per_second);
  REQUIRE(second.front().lost == 10);
  SECTION("one that is too long is lost, and takes nobody's place") {
    agent.written.clear();
    agent.now += 5s;
    agent.say(NodeEvent{.line = std::string(node_event_bytes_max + 1, 'x')});
    REQUIRE(agent.all_written<NodeEvent>().empty());
    for (int i = 0; i < 60; ++i) agent.say(NodeEvent{.line = std::string(node_event_bytes_max, 'x')});
    REQUIRE(agent.all_written<NodeEvent>().size() == EventAllowance::burst);
    REQUIRE(agent.all_written<NodeEvent>().front().lost == 21);
  }
  SECTION("what has ended the job is told when it has an end") {
    agent.written.clear();
    agent.now += 5s;
    agent.hear(End{{.exit_code = 1}});
    agent.say(NodeEvent{.line = "why"});
    REQUIRE(agent.all_written<NodeEvent>().size() == 1);
  }
  SECTION("what happens while there is no connection is lost, too") {
    agent.now += 5s;
    agent.step(link::Closed{agent.line, "reset"});
    agent.say(NodeEvent{.line = "unheard"});
    agent.reconnect();
    agent.written.clear();
    agent.say(NodeEvent{.line = "heard"});
    REQUIRE(agent.all_written<NodeEvent>() == std::vector{NodeEvent{"heard", 21}});
  }
}

TEST_CASE("a question is answered once, and where it came from", "[unit][link]") {
  Linked agent;
  agent.hear(question);
  REQUIRE(agent.told == std::vector<CoordinatorMessage>{question});
  const Answer answer{.number = 4, .type = "application/json", .body = "{}"};
  SECTION("once") {
    agent.say(Answer{.number = 5});  // nobody has asked that
    agent.say(answer);
    agent.say(answer);
    REQUIRE(agent.all_written<Answer>() == std::vector{answer});
  }
  SECTION("not on another connection") {
    agent.reconnect();
    agent.say(answer);
    REQUIRE(agent.all_written<Answer>().empty());
  }
  SECTION("so many at a time") {
    for (std::uint64_t number = 100; number < 99 + open_questions_max; ++number) agent.hear(Ask{.number = number});
    REQUIRE(agent.told.size() == open_questions_max);
    REQUIRE(agent.all_written<Answer>().empty());
    agent.hear(Ask{.number = 1000});
    REQUIRE(agent.told.size() == open_questions_max);
    REQUIRE(agent.all_written<Answer>().at(0).number == 1000);
    REQUIRE(agent.all_written<Answer>().at(0).status == 503);
    agent.say(answer);
    agent.hear(Ask{.number = 1001});
    REQUIRE(agent.told.size() == open_questions_max + 1);
  }
}

TEST_CASE("a member asks, and hears the answer", "[unit][link]") {
  Linked agent;
  agent.say(question);
  REQUIRE(agent.all_written<Ask>() == std::vector{question});
  agent.hear(Answer{.number = 4, .status = 404});
  REQUIRE(agent.told == std::vector<CoordinatorMessage>{Answer{.number = 4, .status = 404}});
  SECTION("also behind the end of the job, which he may have ordered") {
    agent.told.clear();
    agent.hear(End{{.exit_code = 143}});
    agent.hear(Answer{.number = 5, .status = 202});
    REQUIRE(agent.told.size() == 2);
    REQUIRE(agent.told.back() == CoordinatorMessage{Answer{.number = 5, .status = 202}});
  }
  SECTION("not where nobody is there to ask") {
    agent.step(link::Closed{agent.line, "reset"});
    agent.written.clear();
    agent.say(question);
    agent.reconnect();
    REQUIRE(agent.all_written<Ask>().empty());
  }
}

TEST_CASE("a planned stop makes the word void that workers have saved", "[unit][link]") {
  Linked agent;
  const Leave saved{.exit_code = 75, .reason = "saved", .stop_signal = 0, .saved = true};
  agent.say(saved);
  const StopWorkers stop{.round = Round{3}, .save = true};
  SECTION("nor is it granted by one to whom this node is lost") {
    agent.hear(stop);
    agent.hear(End{verdict_of(saved)});
    REQUIRE(agent.told == std::vector<CoordinatorMessage>{stop});
    agent.hear(End{{.exit_code = 143}});
    REQUIRE(agent.told.size() == 2);
  }
  SECTION("it is not said again, nor granted by the link itself") {
    agent.hear(stop);
    REQUIRE(agent.told == std::vector<CoordinatorMessage>{stop});
    agent.written.clear();
    agent.reconnect();
    REQUIRE(agent.all_written<Leave>().empty());
    agent.now += CoordinatorLink::leave_limit;
    agent.step(link::Wake{});
    REQUIRE(agent.told.size() == 1);
  }
  SECTION("any other stop does not") {
    agent.hear(StopWorkers{.round = Round{3}});
    agent.written.clear();
    agent.reconnect();
    REQUIRE(agent.all_written<Leave>().size() == 1);
  }
}
