#include "launcher/core/fan_out/far_agent.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <csignal>

#include "launcher/core/text/signals.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

struct Lines {
  std::string text;
  void operator()(const far::Send& a) { std::visit(*this, a.message); }
  void operator()(const LinkHello&) { text += "hello\n"; }
  void operator()(const LinkRefuse& m) { text += fmt::format("refuse {}: {}\n", m.code, m.text); }
  void operator()(const LinkEnded& m) { text += fmt::format("ended {}\n", m.code); }
  void operator()(const LinkPing&) { text += "ping\n"; }
  void operator()(const far::StartAgent& a) { text += fmt::format("start {}\n", a.plan.name); }
  void operator()(const far::SignalAgent& a) { text += fmt::format("signal {}\n", a.number); }
  void operator()(const far::Credit& a) { text += fmt::format("credit {}\n", a.bytes); }
  void operator()(const far::Deafen&) { text += "deafen\n"; }
  void operator()(const far::Exit& a) { text += fmt::format("exit {}\n", a.exit_code); }
};

struct FarEnd {
  std::string step(const far::Event& event) {
    Lines lines;
    for (const far::Action& action : machine.step(event, now)) std::visit(lines, action);
    return lines.text;
  }
  std::string hear(FrontMessage message) { return step(far::MessageCame{std::move(message)}); }
  std::string plan(const std::string& version = "1", bool own_coordinator = true) {
    LinkPlan plan;
    plan.version = version;
    plan.own_coordinator = own_coordinator;
    plan.name = "a";
    return hear(plan);
  }
  std::string pass(Duration time) {
    now += time;
    return step(far::Wake{});
  }
  TimePoint now{};
  FarAgent machine{"1", now};
};

}  // namespace

TEST_CASE("a far agent is started by its plan and its end is told", "[unit][fan_out]") {
  FarEnd end;
  REQUIRE(end.plan() == "start a\n");
  REQUIRE(end.plan().empty());  // there is one only
  REQUIRE(end.hear(LinkSignal{SIGUSR1}) == "signal 10\n");
  REQUIRE(end.hear(LinkAck{4096}) == "credit 4096\n");
  REQUIRE(end.step(far::AgentEnded{7}) == "ended 7\nexit 7\n");
  REQUIRE_FALSE(end.machine.deadline());
  REQUIRE(end.pass(1h).empty());
}

TEST_CASE("a plan of another version starts nothing", "[unit][fan_out]") {
  FarEnd end;
  const std::string lines = end.plan("2");
  REQUIRE(lines.starts_with("refuse 68: torchup 1 is here and 2 where the job was started"));
  REQUIRE(lines.ends_with("exit 68\n"));
}

TEST_CASE("an agent that cannot be started is told", "[unit][fan_out]") {
  FarEnd end;
  end.plan();
  REQUIRE(end.step(far::NotStarted{{2, "/data: No such file or directory"}}) ==
          "refuse 2: /data: No such file or directory\nexit 2\n");
}

TEST_CASE("an agent whose front is gone loses its connection, and is killed", "[unit][fan_out]") {
  FarEnd end;
  end.plan();
  REQUIRE(end.step(far::InputEnded{}) == "deafen\n");
  REQUIRE(end.step(far::InputEnded{}).empty());
  REQUIRE(end.machine.deadline() == end.now + lifeline_patience);
  REQUIRE(end.pass(lifeline_patience - 1ns).empty());
  REQUIRE(end.pass(1ns) == "signal 9\n");
  REQUIRE(end.step(far::AgentEnded{137}) == "exit 137\n");
}

TEST_CASE("an agent whose coordinator is elsewhere is asked to leave, then killed", "[unit][fan_out]") {
  FarEnd end;
  end.plan("1", false);
  REQUIRE(end.step(far::InputEnded{}) == fmt::format("deafen\nsignal {}\n", dismissal_signal));
  REQUIRE(end.pass(lifeline_patience) == "signal 9\n");
}

TEST_CASE("an agent that ends in time is not killed", "[unit][fan_out]") {
  FarEnd end;
  end.plan();
  end.step(far::InputEnded{});
  REQUIRE(end.step(far::AgentEnded{143}) == "exit 143\n");
}

TEST_CASE("a front that says nothing is gone", "[unit][fan_out]") {
  FarEnd end;
  end.plan();
  REQUIRE(end.pass(5s) == "ping\n");
  REQUIRE(end.pass(5s) == "ping\n");
  SECTION("after its time") {
    REQUIRE(end.pass(5s - 1ns).empty());
    REQUIRE(end.pass(1ns) == "deafen\n");
  }
  SECTION("unless it is heard") {
    end.step(far::Heard{});
    REQUIRE(end.pass(link_silence_max - 1ns) == "ping\n");
    REQUIRE(end.pass(1ns) == "deafen\n");
  }
}

TEST_CASE("without a plan nothing is left to end", "[unit][fan_out]") {
  FarEnd end;
  SECTION("where the front is gone") { REQUIRE(end.step(far::InputEnded{}) == "exit 1\n"); }
  SECTION("where it says nothing") { REQUIRE(end.pass(link_silence_max) == "exit 1\n"); }
  SECTION("where somebody ends us") { REQUIRE(end.step(far::SignalCame{SIGTERM}) == "exit 143\n"); }
}

TEST_CASE("a signal to the far end is the agent's", "[unit][fan_out]") {
  FarEnd end;
  end.plan();
  REQUIRE(end.step(far::SignalCame{SIGHUP}) == "signal 1\n");
}
