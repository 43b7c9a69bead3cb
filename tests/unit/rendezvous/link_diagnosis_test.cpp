// The link machine: what goes by it beside the rounds. Reports, clocks, questions and answers.
#include <catch2/catch.hpp>

#include "tests/support/linked.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

const Placement place{.round = Round{3}, .group_world_size = 2, .world_size = 4, .master_addr = "10.0.0.1"};
const ProgressReport early{.watched = true, .silence = 1s}, late{.watched = true, .progressed = true, .silence = 5s};

/// What was written is what the last word has led to.
struct Linked : test::Linked {
  void say(AgentMessage message) {
    written.clear();
    test::Linked::say(std::move(message));
  }
  void run() {
    connect();
    say(Join{.node = NodeId{"n"}, .terms = {.lease = 10s}});
    hear(Placed{place});
    told.clear();
  }
  void reconnect() {
    test::Linked::reconnect();
    written.clear();
  }
  /// The report of the keep-alive that comes next.
  std::optional<ProgressReport> next_report() {
    const std::uint64_t before = keep_alive.number;
    for (int i = 0; i < 5 && keep_alive.number == before; ++i) {
      now = std::max(now, link.deadline().value());
      step(link::Wake{});
    }
    REQUIRE(keep_alive.number != before);
    hear(KeepAliveAnswer{keep_alive.number});
    return keep_alive.report;
  }
};

}  // namespace

TEST_CASE("the newest report goes with each keep-alive of a running round", "[unit][link]") {
  Linked agent;
  agent.connect();
  agent.step(link::Report{early});
  REQUIRE(agent.next_report() == std::nullopt);
  agent.say(Join{.node = NodeId{"n"}, .terms = {.lease = 10s}});
  agent.hear(Placed{place});
  REQUIRE(agent.next_report() == std::nullopt);  // it was of a round before
  agent.step(link::Report{early});
  agent.step(link::Report{late});
  REQUIRE(agent.next_report() == late);
  REQUIRE(agent.next_report() == late);
  agent.reconnect();
  REQUIRE(agent.next_report() == late);
  agent.say(WorkersSucceeded{place.round});
  REQUIRE(agent.next_report() == late);  // the others are watched on
  agent.hear(StopWorkers{place.round});
  REQUIRE(agent.next_report() == std::nullopt);
}

TEST_CASE("answers to keep-alives tell how far the coordinator's clock is ahead", "[unit][link]") {
  Linked agent;
  agent.run();
  REQUIRE(agent.link.clock() == std::nullopt);
  agent.hear(KeepAliveAnswer{agent.keep_alive.number});  // of an older coordinator
  REQUIRE(agent.link.clock() == std::nullopt);
  agent.now = agent.link.deadline().value();
  const TimePoint sent = agent.now;
  agent.step(link::Wake{});
  agent.now += 4ms;
  const std::chrono::nanoseconds theirs = sent.time_since_epoch() + 2ms + 70s;
  const std::chrono::nanoseconds day = sent.time_since_epoch() + 2ms + 400'000h;
  REQUIRE(agent.link.day() == std::nullopt);
  agent.hear(KeepAliveAnswer{agent.keep_alive.number, theirs.count(), day.count()});
  REQUIRE(agent.link.clock() == ClockOffset::Estimate{.offset = 70s, .error = 2ms});
  REQUIRE(agent.link.day() == ClockOffset::Estimate{.offset = 400'000h, .error = 2ms});
  agent.hear(KeepAliveAnswer{agent.keep_alive.number, 5});  // said again, it is answered no more
  REQUIRE(agent.link.clock() == ClockOffset::Estimate{.offset = 70s, .error = 2ms});
  agent.reconnect();  // to another machine, perhaps
  REQUIRE(agent.link.clock() == std::nullopt);
  REQUIRE(agent.link.day() == std::nullopt);
}

TEST_CASE("clocks are compared that stand still while the machine is suspended", "[unit][link]") {
  Linked agent;
  agent.suspended = 500s;  // before this process began
  agent.run();
  const auto answered = [&](std::uint64_t number, Duration ahead) {
    const std::chrono::nanoseconds theirs = agent.now.time_since_epoch() - agent.suspended + ahead;
    const std::chrono::nanoseconds day = agent.now.time_since_epoch() + 400'000h;
    agent.hear(KeepAliveAnswer{number, theirs.count(), day.count()});
  };
  const auto ask = [&] {
    const std::uint64_t before = agent.keep_alive.number;
    for (int i = 0; i < 5 && agent.keep_alive.number == before; ++i) {
      agent.now = std::max(agent.now, agent.link.deadline().value());
      agent.step(link::Wake{});
    }
    return agent.keep_alive.number;
  };
  answered(ask(), 70s);
  REQUIRE(agent.link.clock()->offset == 70s);
  SECTION("what was known before is wrong: theirs goes on") {
    agent.now += 1s;
    agent.suspended += 1s;
    answered(ask(), 71s);
    REQUIRE(agent.link.clock() == ClockOffset::Estimate{.offset = 71s});
  }
  SECTION("a round trip in which it happens says nothing") {
    const std::uint64_t number = ask();
    agent.now += 1s;
    agent.suspended += 1s;
    answered(number, 71s);
    REQUIRE(agent.link.clock() == std::nullopt);
    answered(ask(), 71s);
    REQUIRE(agent.link.clock() == ClockOffset::Estimate{.offset = 71s});
  }
  REQUIRE(agent.link.day()->offset == 400'000h);
}

TEST_CASE("an answer goes where its question came from, once", "[unit][link]") {
  Linked agent;
  agent.run();
  const auto wrote = [&](AgentMessage message) {
    agent.say(std::move(message));
    return !agent.written.empty();
  };
  const std::string part = "part";
  REQUIRE_FALSE(wrote(Examined{0, part, true}));
  REQUIRE_FALSE(wrote(Arrivals{part}));
  agent.hear(Examine{.number = 4});
  agent.hear(Examine{.number = 9, .arrivals_only = true});
  REQUIRE(agent.told.size() == 2);
  REQUIRE_FALSE(wrote(Examined{9, part, true}));
  REQUIRE(wrote(Examined{4, part, false}));
  REQUIRE(wrote(Examined{4, part, true}));
  REQUIRE_FALSE(wrote(Examined{4, part, true}));
  REQUIRE(wrote(Arrivals{part}));
  REQUIRE_FALSE(wrote(Arrivals{part}));

  agent.hear(Examine{.number = 5});
  agent.hear(Examine{.arrivals_only = true});
  SECTION("not to a coordinator that may have begun anew") { agent.reconnect(); }
  SECTION("not from another round") {
    agent.hear(StopWorkers{place.round});
    agent.say(Join{.node = NodeId{"n"}, .terms = {.lease = 10s}});
    Placement next = place;
    next.round = Round{4};
    agent.hear(Placed{next});
  }
  REQUIRE_FALSE(wrote(Examined{5, part, true}));
  REQUIRE_FALSE(wrote(Arrivals{part}));
}

TEST_CASE("where no round runs nobody asks, is asked or is told of ranks", "[unit][link]") {
  Linked agent;
  const auto nothing = [&] {
    agent.told.clear();
    agent.hear(Examine{.number = 4});
    agent.hear(HangTold{"news"});
    agent.say(AskLook{});
    return agent.told.empty() && agent.written.empty();
  };
  agent.connect();
  REQUIRE(nothing());
  agent.say(Join{.node = NodeId{"n"}, .terms = {.lease = 10s}});
  REQUIRE(nothing());
  agent.hear(Placed{place});
  REQUIRE_FALSE(nothing());
  REQUIRE(agent.told == std::vector<CoordinatorMessage>{Examine{.number = 4}, HangTold{"news"}});
  REQUIRE(agent.written == std::vector<AgentFrame>{AskLook{}});
  agent.hear(StopWorkers{place.round});
  REQUIRE(nothing());
}
