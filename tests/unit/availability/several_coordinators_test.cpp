// The agent's link where coordinators take each other's place.
#include <algorithm>
#include <catch2/catch.hpp>

#include "rendezvous/core/link/coordinator_link.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

constexpr Duration lease = 10s;
const Endpoint first{"a", Port{29400}}, second{"b", Port{29400}}, third{"c", Port{4711}};
const Placement place{.round = Round{3}, .group_world_size = 2, .world_size = 4, .master_addr = "10.0.0.1"};

/// A link, its clock, and what it wanted since it was asked last.
struct Agent {
  explicit Agent(std::vector<Endpoint> endpoints)
      : link{{.endpoint = first,
              .run_id = RunId{"job"},
              .join_timeout = 60s,
              .endpoints = endpoints,
              .directed = endpoints.empty()},
             TimePoint{}} {}

  void step(const link::Event& event) {
    for (link::Action& action : link.step(event, now)) {
      if (const auto* dial = std::get_if<link::Dial>(&action)) dialled = *dial;
      if (const auto* write = std::get_if<link::Write>(&action)) {
        if (const auto* alive = std::get_if<KeepAlive>(&write->frame)) keep_alive = *alive;
      }
      actions.push_back(std::move(action));
    }
  }
  void pass(TimePoint until) {
    while (const auto due = link.deadline()) {
      if (*due > until) break;
      now = std::max(now, *due);
      step(link::Wake{});
      if (refusing && dialled) step(link::DialFailed{std::exchange(dialled, {})->line, true, "refused"});
    }
    now = until;
  }
  LineId connect() {
    if (!dialled) step(link::Wake{});
    REQUIRE(dialled);
    const LineId line = std::exchange(dialled, {})->line;
    step(link::Dialled{line});
    return line;
  }
  LineId welcome(std::int64_t term) {
    const LineId line = connect();
    step(link::Heard{line, Welcome{.term = term}});
    return line;
  }
  /// In a round, its last sign of life answered now with a proof of now.
  LineId run(std::int64_t term) {
    Join join;
    join.node = NodeId{"n_0"};
    join.terms.lease = lease;
    step(link::Say{join});
    const LineId line = welcome(term);
    step(link::Heard{line, Placed{place}});
    answer(line, 0s);
    actions.clear();
    return line;
  }
  void answer(LineId line, Duration age, bool seated = true) {
    step(link::Heard{line, KeepAliveAnswer{.number = keep_alive.number, .age = age, .seated = seated}});
  }
  template <class What>
  [[nodiscard]] const What* wanted() const {
    for (const auto& action : actions) {
      if (const auto* what = std::get_if<What>(&action)) return what;
    }
    return nullptr;
  }
  [[nodiscard]] const Moved* moved() const {
    for (const auto& action : actions) {
      const auto* write = std::get_if<link::Write>(&action);
      if (const auto* said = write ? std::get_if<Moved>(&write->frame) : nullptr) return said;
    }
    return nullptr;
  }
  [[nodiscard]] bool fenced() const {
    return std::ranges::any_of(actions, [](const auto& action) {
      const auto* tell = std::get_if<link::Tell>(&action);
      const auto* message = tell ? std::get_if<CoordinatorMessage>(&tell->event) : nullptr;
      const auto* stop = message ? std::get_if<StopWorkers>(message) : nullptr;
      return stop && stop->cause == StopCause::fenced;
    });
  }

  CoordinatorLink link;
  TimePoint now{};
  bool refusing = false;
  std::optional<link::Dial> dialled;
  KeepAlive keep_alive;
  std::vector<link::Action> actions;
};

}  // namespace

TEST_CASE("daemons are tried in their order, and a refused one gives its turn at once", "[unit][several]") {
  Agent agent{{first, second}};
  agent.step(link::Wake{});
  REQUIRE(agent.dialled->endpoint == first);
  agent.step(link::DialFailed{std::exchange(agent.dialled, {})->line, true, "refused"});
  REQUIRE(agent.dialled->endpoint == second);
}

TEST_CASE("a standby sends an agent to the active one", "[unit][several]") {
  Agent agent{{first, second}};
  const LineId line = agent.connect();
  agent.step(link::Heard{line, Elsewhere{7, {"c:4711"}}});
  REQUIRE(agent.dialled->endpoint == third);
  agent.welcome(7);
  REQUIRE(agent.wanted<link::Attends>()->term == 7);
  SECTION("and those who send each other on are waited for after a few") {
    Agent other{{first, second}};
    for (int i = 0; i < CoordinatorLink::hops_max; ++i) {
      other.step(link::Heard{other.connect(), Elsewhere{7, {"c:4711"}}});
      REQUIRE(other.dialled);
    }
    other.step(link::Heard{other.connect(), Elsewhere{7, {"c:4711"}}});
    // The next in the list, and after that a pause.
    if (other.dialled) other.step(link::Heard{other.connect(), Elsewhere{0, {}}});
    REQUIRE_FALSE(other.dialled);
    REQUIRE(*other.link.deadline() > other.now);
  }
}

TEST_CASE("a standby that knows of none gives its turn to the next", "[unit][several]") {
  Agent agent{{first, second}};
  agent.step(link::Heard{agent.connect(), Elsewhere{}});
  REQUIRE(agent.dialled->endpoint == second);
}

TEST_CASE("who was the coordinator before another is not obeyed", "[unit][several]") {
  Agent agent{{first, second}};
  const LineId line = agent.run(9);
  agent.step(link::Closed{line, ""});
  const LineId old = agent.welcome(8);
  REQUIRE(std::ranges::count(agent.actions, link::Action{link::Close{old}}) == 1);
  agent.actions.clear();
  agent.step(link::Heard{old, StopWorkers{place.round, StopCause::worker_failure, "stop"}});
  REQUIRE_FALSE(agent.wanted<link::Tell>());
}

TEST_CASE("the fence counts from the coordinator's proof", "[unit][several]") {
  Agent agent{{first}};
  const LineId line = agent.run(5);
  const TimePoint proved = agent.now;
  for (int second = 1; second <= 8; ++second) {
    agent.pass(proved + second * 1s);
    agent.answer(line, second * 1s);  // etcd has been silent ever since
  }
  REQUIRE_FALSE(agent.fenced());
  agent.pass(proved + lease * 9 / 10 - 1ns);
  REQUIRE_FALSE(agent.fenced());
  agent.pass(proved + lease * 9 / 10);
  REQUIRE(agent.fenced());
}

TEST_CASE("the newest answer is echoed, by its own line alone", "[unit][several]") {
  Agent agent{{first}};
  const LineId line = agent.run(5);
  const std::uint64_t answered = agent.keep_alive.number;
  agent.pass(agent.now + 1s);
  REQUIRE(agent.keep_alive.seen == answered);
  agent.step(link::Closed{line, "reset"});
  agent.welcome(5);
  REQUIRE(agent.keep_alive.seen == 0);
}

TEST_CASE("a coordinator that gives up its seat is left without a fence, for whom it names", "[unit][several]") {
  Agent agent{{first, second}};
  const LineId line = agent.run(5);
  agent.step(link::Heard{line, Elsewhere{6, {"c:4711"}}});
  REQUIRE_FALSE(agent.fenced());
  REQUIRE(agent.wanted<link::Doubts>());
  REQUIRE(agent.dialled->endpoint == third);
  agent.actions.clear();
  agent.welcome(6);
  REQUIRE(agent.wanted<link::Write>());  // it restates itself
}

TEST_CASE("who moves to a successor tells the former one", "[unit][several]") {
  Agent agent{{}};
  agent.step(link::Directed{5, {first}});
  agent.run(5);
  agent.step(link::Directed{6, {second}});
  REQUIRE(agent.dialled->endpoint == second);
  agent.welcome(6);
  REQUIRE(agent.moved());
  REQUIRE(*agent.moved() == Moved{6, {"b:29400"}});
}

TEST_CASE("nobody is dialled before it is known where the coordinator is", "[unit][several]") {
  Agent agent{{}};
  agent.pass(TimePoint{} + 59s);
  REQUIRE_FALSE(agent.dialled);
  SECTION("and that is what the end says") {
    agent.step(link::Undirected{"etcd1:2379: refused", 0});
    agent.pass(TimePoint{} + 60s);
    const auto* tell = agent.wanted<link::Tell>();
    REQUIRE(tell);
    const auto* lost = std::get_if<LinkLost>(&std::get<link::Tell>(agent.actions.back()).event);
    REQUIRE(lost);
    REQUIRE(lost->exit_code == 67);
    REQUIRE(lost->reason.find("etcd1:2379: refused") != std::string::npos);
  }
  SECTION("what trying does not mend is the end at once") {
    agent.step(link::Undirected{"authentication failed", 68});
    const auto* lost = std::get_if<LinkLost>(&std::get<link::Tell>(agent.actions.back()).event);
    REQUIRE(lost);
    REQUIRE(lost->exit_code == 68);
  }
  SECTION("a verdict that is kept ends it") {
    agent.step(link::Ended{{.exit_code = 3, .reason = "it failed"}});
    const auto* tell = agent.wanted<link::Tell>();
    REQUIRE(tell);
    REQUIRE(std::get<CoordinatorMessage>(tell->event) == CoordinatorMessage{End{{.exit_code = 3, .reason = "it failed"}}});
  }
}

TEST_CASE("an end of file proves the holder's end, a broken line only with its refusal", "[unit][several]") {
  Agent agent{{}};
  agent.step(link::Directed{5, {first}});
  const LineId line = agent.run(5);
  SECTION("an end of file") {
    agent.step(link::Closed{line, ""});
    REQUIRE(agent.wanted<link::SawEnd>()->term == 5);
  }
  SECTION("a broken line") {
    agent.step(link::Closed{line, "reset"});
    REQUIRE_FALSE(agent.wanted<link::SawEnd>());
    REQUIRE(agent.wanted<link::Doubts>());
    if (!agent.dialled) agent.pass(agent.now + 1s);
    agent.step(link::DialFailed{std::exchange(agent.dialled, {})->line, true, "refused"});
    REQUIRE(agent.wanted<link::SawEnd>()->term == 5);
  }
  REQUIRE_FALSE(agent.fenced());
}

TEST_CASE("an unseated coordinator is doubted once, until it is sure again", "[unit][several]") {
  Agent agent{{}};
  agent.step(link::Directed{5, {first}});
  const LineId line = agent.run(5);
  agent.answer(line, 0s, false);
  REQUIRE(agent.wanted<link::Doubts>());
  agent.actions.clear();
  agent.pass(agent.now + 1s);
  agent.answer(line, 0s, false);
  REQUIRE_FALSE(agent.wanted<link::Doubts>());
  agent.pass(agent.now + 1s);
  agent.answer(line, 0s);
  REQUIRE(agent.wanted<link::Attends>()->term == 5);
}

TEST_CASE("beside a silent daemon the others are asked, and who only knows the silent one sends nobody back",
          "[unit][several]") {
  Agent agent{{first, second}};
  const LineId line = agent.run(5);
  agent.pass(agent.now + 2500ms);  // the answer is late
  REQUIRE(agent.wanted<link::Doubts>());
  REQUIRE(agent.dialled->endpoint == second);
  agent.step(link::Heard{agent.connect(), Elsewhere{5, {"a:29400"}}});
  agent.pass(agent.now + 2s);
  REQUIRE(agent.dialled->endpoint == second);
  const LineId other = agent.connect();
  REQUIRE(other != line);
  agent.step(link::Heard{other, Welcome{.term = 6}});
  REQUIRE(agent.moved());
  REQUIRE_FALSE(agent.fenced());
}

TEST_CASE("who hears answers whose proof is old gives up its line and looks who has the seat", "[unit][several]") {
  Agent agent{{}};
  agent.step(link::Directed{7, {third}});
  Join join;
  join.node = NodeId{"n_0"};
  join.terms.lease = lease;
  agent.step(link::Say{join});
  const LineId line = agent.welcome(7);
  agent.actions.clear();
  for (int i = 0; i < 20 && !agent.wanted<link::Close>(); ++i) {  // without a place, and without a doubt of silence
    agent.answer(line, 1h);
    agent.pass(agent.now + 500ms);
  }
  REQUIRE(agent.wanted<link::Close>());
  REQUIRE(agent.wanted<link::Doubts>());
}
