#include "launcher/core/fan_out/fan_out.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <csignal>

#include "launcher/core/text/signals.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

/// What the front does, one line for each action.
struct Lines {
  std::string text;
  void operator()(const fan::Start& a) {
    text += fmt::format("start {} {} as node {}\n", a.link.value(), a.host.name, a.node);
  }
  void operator()(const fan::Send& a) {
    const int number = std::get<LinkSignal>(a.message).number;
    text += number == dismissal_signal ? fmt::format("dismiss {}\n", a.link.value())
                                       : fmt::format("signal {} {}\n", a.link.value(), number);
  }
  void operator()(const fan::Close& a) { text += fmt::format("close {}\n", a.link.value()); }
  void operator()(const fan::Expect& a) {
    const char* const more = a.others_come ? " or others" : "";
    text += a.exit_code ? fmt::format("over with {}: {}\n", *a.exit_code, a.reason)
                        : fmt::format("expect {}{}\n", a.agents, more);
  }
  void operator()(const fan::Say& a) {
    constexpr const char* levels[] = {"info", "warning", "error"};
    text += fmt::format("{}: {}\n", levels[static_cast<int>(a.level)], a.text);
  }
  void operator()(const fan::Finish& a) { text += fmt::format("finish {}\n", a.exit_code); }
};

struct Front {
  explicit Front(FanOutSettings settings) : machine{std::move(settings)} {}
  std::string step(const fan::Event& event) {
    Lines lines;
    for (const fan::Action& action : machine.step(event, now)) std::visit(lines, action);
    return lines.text;
  }
  std::string hello(std::uint64_t link, const std::string& version = "1") {
    return step(fan::HelloCame{HostLink{link}, {version, "host", {}}});
  }
  std::string ended(std::uint64_t link, int code) { return step(fan::EndCame{HostLink{link}, code}); }
  std::string broken(std::uint64_t link, std::optional<int> code = 255) {
    return step(fan::Broken{HostLink{link}, "ssh ended with 255", code});
  }
  std::string pass(Duration time) {
    now += time;
    return step(fan::Wake{});
  }
  /// All hosts are there.
  void begin(std::uint64_t hosts) {
    step(fan::Begin{});
    for (std::uint64_t link = 0; link < hosts; ++link) hello(link);
  }
  FanOut machine;
  TimePoint now{};
};

FanOutSettings of(std::vector<std::string> names, int min_nodes) {
  FanOutSettings settings{.min_nodes = min_nodes, .version = "1", .end_signals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT}};
  for (std::string& name : names) settings.hosts.push_back({std::move(name)});
  return settings;
}

FanOutSettings discovering() {
  FanOutSettings settings = of({}, 1);
  settings.discovers = true;
  return settings;
}

std::vector<Host> hosts(const std::vector<std::string>& names) { return of(names, 1).hosts; }

}  // namespace

TEST_CASE("all hosts are started at once and end with the verdict", "[unit][fan_out]") {
  Front front{of({"a", "b"}, 2)};
  REQUIRE(front.step(fan::Begin{}) == "start 0 a as node 0\nstart 1 b as node 1\nexpect 2\n");
  REQUIRE(front.hello(0).empty());
  REQUIRE(front.hello(1).empty());
  REQUIRE(front.step(fan::JobOver{0}) == "over with 0: the job is over\n");
  REQUIRE(front.ended(1, 0) == "close 1\n");
  REQUIRE(front.ended(0, 0) == "close 0\nfinish 0\n");
  REQUIRE(front.machine.finished());
  REQUIRE(front.pass(1h).empty());
}

TEST_CASE("so many commands are started at a time", "[unit][fan_out]") {
  std::vector<std::string> names;
  for (int index = 0; index <= fan_out_starts_max; ++index) names.push_back(fmt::format("h{}", index));
  Front front{of(names, 1)};
  const std::string first = front.step(fan::Begin{});
  REQUIRE(std::ranges::count(first, '\n') == fan_out_starts_max + 1);
  REQUIRE(first.ends_with(fmt::format("expect {}\n", fan_out_starts_max + 1)));
  REQUIRE(front.hello(5) == fmt::format("start {0} h{0} as node {0}\n", fan_out_starts_max));
}

TEST_CASE("a host that cannot be started ends the job where all are needed", "[unit][fan_out]") {
  Front front{of({"a", "b"}, 2)};
  front.step(fan::Begin{});
  front.hello(0);
  const std::string reason = "host b: ssh ended with 255; 1 of 2 hosts are left, and the job needs 2";
  REQUIRE(front.broken(1) == "close 1\nerror: " + reason + "\nover with 67: " + reason + "\n");
  REQUIRE(front.ended(0, 67) == "close 0\nfinish 67\n");
}

TEST_CASE("hosts whose agent was not heard are closed when the job is given up", "[unit][fan_out]") {
  Front front{of({"a", "b", "c"}, 3)};
  front.step(fan::Begin{});
  front.hello(0);
  const std::string lines = front.broken(1);
  REQUIRE(lines.find("close 2\n") != std::string::npos);
  REQUIRE(front.hello(2).empty());  // what is still on its way says nothing any more
  REQUIRE(front.ended(0, 67) == "close 0\nfinish 67\n");
}

TEST_CASE("a host that cannot be started is done without where the others are enough", "[unit][fan_out]") {
  Front front{of({"a", "b", "c"}, 2)};
  front.step(fan::Begin{});
  front.hello(0);
  front.hello(2);
  REQUIRE(front.broken(1) == "close 1\nwarning: host b: ssh ended with 255; the other 2 go on\nexpect 2\n");
  front.step(fan::JobOver{0});
  front.ended(0, 0);
  REQUIRE(front.ended(2, 0) == "close 2\nfinish 0\n");
}

TEST_CASE("a host that does not answer is given up after its time", "[unit][fan_out]") {
  Front front{of({"a", "b"}, 1)};
  front.step(fan::Begin{});
  front.hello(0);
  REQUIRE(front.machine.deadline() == TimePoint{} + hello_patience);
  REQUIRE(front.pass(hello_patience - 1ns).empty());
  REQUIRE(front.pass(1ns) == "close 1\nwarning: host b: it did not answer within 30 s; the other 1 go on\nexpect 1\n");
}

TEST_CASE("a host with another version is refused", "[unit][fan_out]") {
  Front front{of({"a"}, 1)};
  front.step(fan::Begin{});
  const std::string lines = front.hello(0, "2");
  REQUIRE(lines.starts_with("close 0\nerror: host a: torchup 2 is there and 1 here; --remote-torchup"));
  REQUIRE(lines.ends_with("finish 68\n"));
}

TEST_CASE("what a host refuses is the job's end, with its code", "[unit][fan_out]") {
  Front front{of({"a"}, 1)};
  front.step(fan::Begin{});
  front.hello(0);
  const std::string text = "host a: /data: No such file or directory";
  REQUIRE(front.step(fan::RefusalCame{HostLink{0}, {2, "/data: No such file or directory"}}) ==
          "close 0\nerror: " + text + "\nover with 2: " + text + "\nfinish 2\n");
}

TEST_CASE("a lost host ends the job at once where too few are left", "[unit][fan_out]") {
  Front front{of({"a", "b"}, 2)};
  front.begin(2);
  const std::string lines = front.step(fan::Broken{HostLink{1}, "the link is broken: it was silent for 15 s", {}});
  REQUIRE(lines.find("over with 66: host b: the link is broken: it was silent for 15 s; 1 of 2") != std::string::npos);
  REQUIRE(front.ended(0, 66) == "close 0\nfinish 66\n");
}

TEST_CASE("who does not hear that the job is over gets a signal", "[unit][fan_out]") {
  Front front{of({"a", "b"}, 2)};
  front.begin(2);
  front.broken(1);
  REQUIRE(front.pass(5s - 1ns).empty());
  REQUIRE(front.pass(1ns) == "dismiss 0\n");
  REQUIRE(front.pass(30s).empty());
}

TEST_CASE("hosts whose workers save are left alone after the verdict", "[unit][fan_out]") {
  Front front{of({"a", "b"}, 2)};
  front.begin(2);
  front.step(fan::JobOver{75});
  front.ended(0, 75);
  REQUIRE(front.pass(60s).empty());
  REQUIRE(front.ended(1, 75) == "close 1\nfinish 75\n");
}

TEST_CASE("an agent that does not end is told of, killed and in the end done without", "[unit][fan_out]") {
  FanOutSettings settings = of({"a", "b"}, 1);
  settings.end_told = 10s;
  settings.end_limit = 20s;
  settings.drain_signals = {SIGHUP};
  Front front{settings};
  front.begin(2);
  const std::string told = "warning: waiting for agents that have been told to end: ";
  const auto killed_and_given_up = [&](const std::string& finish) {
    REQUIRE(front.pass(10s) == "signal 1 9\nwarning: agents that have not ended are killed: b\n");
    REQUIRE(front.machine.deadline() == front.now + killed_patience);
    REQUIRE(front.pass(killed_patience - 1ns).empty());
    REQUIRE(front.pass(1ns) ==
            "close 1\nerror: not waited for any longer, and processes of the job may live there: b\n" + finish);
  };
  SECTION("after the verdict") {
    front.step(fan::JobOver{1});
    REQUIRE(front.machine.deadline() == front.now + 10s);
    REQUIRE(front.pass(10s - 1ns).empty());
    REQUIRE(front.pass(1ns) == told + "a, b\n");
    front.ended(0, 1);
    killed_and_given_up("finish 1\n");
  }
  SECTION("after a signal") {
    front.step(fan::SignalCame{SIGINT});
    front.ended(0, 130);
    REQUIRE(front.pass(10s) == told + "b\n");
    killed_and_given_up("finish 130\n");
  }
  SECTION("not while its workers are asked to save") {
    front.step(fan::SignalCame{SIGHUP});
    REQUIRE(front.pass(1h).empty());
  }
  SECTION("not while our reader holds what it says") {
    front.step(fan::JobOver{1});
    front.step(fan::OutputHeld{true});
    REQUIRE_FALSE(front.machine.deadline());
    REQUIRE(front.pass(1h).empty());
    REQUIRE(front.step(fan::OutputHeld{false}).empty());
    front.ended(0, 1);
    REQUIRE(front.pass(10s - 1ns).empty());
    REQUIRE(front.pass(1ns) == told + "b\n");
    killed_and_given_up("finish 1\n");
  }
}

TEST_CASE("an agent that ends before the verdict is a host less, with its code", "[unit][fan_out]") {
  Front front{of({"a", "b"}, 2)};
  front.begin(2);
  const std::string lines = front.ended(1, 65);
  REQUIRE(lines.find("over with 65: host b: its agent ended with 65") != std::string::npos);
  REQUIRE(front.ended(0, 65) == "close 0\nfinish 65\n");
}

TEST_CASE("an agent that has lost its way to the front is a lost host", "[unit][fan_out]") {
  Front front{of({"a", "b"}, 2)};
  front.begin(2);
  REQUIRE(front.ended(1, 67).find("over with 66: host b: its agent has lost the way here") != std::string::npos);
}

TEST_CASE("a link that breaks after the verdict changes nothing", "[unit][fan_out]") {
  Front front{of({"a", "b"}, 2)};
  front.begin(2);
  front.step(fan::JobOver{1});
  REQUIRE(front.broken(0) == "close 0\n");
  REQUIRE(front.ended(1, 1) == "close 1\nfinish 1\n");
}

TEST_CASE("signals go to all hosts, and end what has not answered", "[unit][fan_out]") {
  Front front{of({"a", "b"}, 1)};
  front.step(fan::Begin{});
  front.hello(0);
  SECTION("one that ends the job") {
    REQUIRE(front.step(fan::SignalCame{SIGINT}) == "signal 0 2\nclose 1\n");
    REQUIRE(front.step(fan::SignalCame{SIGINT}) == "signal 0 2\n");
    REQUIRE(front.ended(0, 130) == "close 0\nfinish 130\n");
  }
  SECTION("one that is passed on") {
    REQUIRE(front.step(fan::SignalCame{SIGUSR1}) == "signal 0 10\n");
    REQUIRE(front.hello(1).empty());
  }
  SECTION("one that is answered by a page first") {
    REQUIRE(front.step(fan::SignalCame{SIGQUIT}) == "signal 0 3\n");
    REQUIRE(front.hello(1).empty());
  }
}

TEST_CASE("a signal before any host has answered ends the front", "[unit][fan_out]") {
  Front front{of({"a"}, 1)};
  front.step(fan::Begin{});
  SECTION("one that ends jobs") { REQUIRE(front.step(fan::SignalCame{SIGTERM}) == "close 0\nfinish 143\n"); }
  SECTION("one that is typed, whatever ends jobs") {
    FanOutSettings settings = of({"a"}, 1);
    settings.end_signals = {SIGTERM};
    Front other{settings};
    other.step(fan::Begin{});
    REQUIRE(other.step(fan::SignalCame{SIGHUP}).empty());
    REQUIRE(other.step(fan::SignalCame{SIGINT}) == "close 0\nfinish 130\n");
  }
}

TEST_CASE("where the coordinator is elsewhere, agents' codes are the verdict", "[unit][fan_out]") {
  FanOutSettings settings = of({"a", "b"}, 2);
  settings.own_coordinator = false;
  Front front{settings};
  REQUIRE(front.step(fan::Begin{}) == "start 0 a as node 0\nstart 1 b as node 1\n");
  front.hello(0);
  front.hello(1);
  SECTION("all of them") {
    REQUIRE(front.ended(0, 0) == "close 0\n");
    REQUIRE(front.ended(1, 1) == "close 1\nfinish 1\n");
  }
  SECTION("a lost host") {
    const std::string lines = front.broken(0);
    REQUIRE(lines.starts_with("close 0\nerror: host a: ssh ended with 255"));
    REQUIRE(lines.ends_with("dismiss 1\n"));
    REQUIRE(front.ended(1, 143) == "close 1\nfinish 66\n");
  }
  SECTION("a node that is unfit") {
    REQUIRE(front.ended(0, 65).starts_with("close 0\nerror: host a: its agent ended with 65"));
    REQUIRE(front.ended(1, 143) == "close 1\nfinish 65\n");
  }
}

TEST_CASE("a host that failed does not say how the others' job came out", "[unit][fan_out]") {
  FanOutSettings settings = of({"a", "b", "c"}, 1);
  settings.own_coordinator = false;
  Front front{settings};
  front.begin(2);
  front.broken(2);
  SECTION("one that could not be started") {
    front.ended(0, 0);
    REQUIRE(front.ended(1, 0) == "close 1\nfinish 0\n");
  }
  SECTION("one that has left") {
    front.ended(0, 143);
    REQUIRE(front.ended(1, 0) == "close 1\nfinish 0\n");
  }
}

TEST_CASE("with hosts that are discovered, too, a job whose coordinator is elsewhere ends", "[unit][fan_out]") {
  FanOutSettings settings = discovering();
  settings.own_coordinator = false;
  Front front{settings};
  front.step(fan::Begin{});
  front.step(fan::Listed{hosts({"a", "b"})});
  front.hello(0);
  front.hello(1);
  REQUIRE(front.ended(0, 0) == "close 0\n");
  SECTION("with the verdict") { REQUIRE(front.ended(1, 0) == "close 1\nfinish 0\n"); }
  SECTION("though a node has lost its way") {
    REQUIRE(front.ended(1, 67) == "close 1\nwarning: host b: its agent ended with 67; tried again in 10 s\nfinish 0\n");
  }
}

TEST_CASE("hosts that are discovered come and go", "[unit][fan_out]") {
  Front front{discovering()};
  REQUIRE(front.step(fan::Begin{}) == "expect 0 or others\n");
  REQUIRE(front.step(fan::Listed{hosts({"a", "b"})}) ==
          "start 0 a as node 0\nstart 1 b as node 1\nexpect 2 or others\n");
  front.hello(0);
  front.hello(1);
  SECTION("a new one is linked") {
    REQUIRE(front.step(fan::Listed{hosts({"c", "b", "a"})}) == "start 2 c as node 2\nexpect 3 or others\n");
  }
  SECTION("one that is gone from the list leaves") {
    REQUIRE(front.step(fan::Listed{hosts({"b"})}) ==
            "info: host a is not listed any more: it leaves\ndismiss 0\nexpect 1 or others\n");
    REQUIRE(front.ended(0, 143) == "close 0\n");
    REQUIRE(front.step(fan::Listed{hosts({"b", "a"})}) == "start 2 a as node 0\nexpect 2 or others\n");
  }
  SECTION("one that comes back while it leaves is started again") {
    front.step(fan::Listed{hosts({"b"})});
    REQUIRE(front.step(fan::Listed{hosts({"b", "a"})}).empty());
    REQUIRE(front.ended(0, 143) == "close 0\nstart 2 a as node 0\nexpect 2 or others\n");
  }
  SECTION("one that comes back while it leaves, and is gone again, is told once and closed in the end") {
    front.step(fan::Listed{hosts({"b"})});
    front.step(fan::Listed{hosts({"b", "a"})});
    REQUIRE(front.step(fan::Listed{hosts({"b"})}).empty());
    REQUIRE(front.ended(0, 143) == "close 0\n");
  }
  SECTION("one that leaves and could not be started is not started again") {
    front.step(fan::Listed{hosts({"b"})});
    REQUIRE(front.step(fan::RefusalCame{HostLink{0}, {2, "/data: No such file or directory"}}) == "close 0\n");
    REQUIRE(front.pass(1h).empty());
  }
  SECTION("one that leaves and does not end is killed, and may come back") {
    front.step(fan::Listed{hosts({"b"})});
    REQUIRE(front.pass(70s).starts_with("warning: waiting for"));
    REQUIRE(front.pass(50s).starts_with("signal 0 9\n"));
    front.step(fan::Listed{hosts({"b", "a"})});
    REQUIRE(front.ended(0, 137) == "close 0\nstart 2 a as node 0\nexpect 2 or others\n");
  }
  SECTION("when all are to end nobody comes in their place") {
    REQUIRE(front.step(fan::SignalCame{SIGTERM}) == "expect 2\nsignal 0 15\nsignal 1 15\n");
    REQUIRE(front.step(fan::SignalCame{SIGTERM}) == "signal 0 15\nsignal 1 15\n");
  }
  SECTION("one that is gone before it has answered is closed") {
    REQUIRE(front.step(fan::Listed{hosts({"a", "b", "c"})}) == "start 2 c as node 2\nexpect 3 or others\n");
    REQUIRE(front.step(fan::Listed{hosts({"a", "b"})}) == "close 2\nexpect 2 or others\n");
  }
}

TEST_CASE("who has left is told from who was there at the end", "[unit][fan_out]") {
  Front front{discovering()};
  front.step(fan::Begin{});
  front.step(fan::Listed{hosts({"a", "b", "c"})});
  for (std::uint64_t link = 0; link < 3; ++link) front.hello(link);
  const auto has_left = [&front](std::uint64_t link, int code) {
    for (const fan::Action& action : front.machine.step(fan::EndCame{HostLink{link}, code}, front.now)) {
      if (const auto* close = std::get_if<fan::Close>(&action)) return close->left;
    }
    FAIL("nothing is closed");
    return false;
  };
  SECTION("though it ends after the verdict") {
    front.step(fan::Listed{hosts({"b", "c"})});
    front.step(fan::JobOver{0});
    REQUIRE(has_left(0, 143));
  }
  SECTION("or by itself") {
    REQUIRE(has_left(0, 65));
    front.step(fan::JobOver{0});
  }
  REQUIRE_FALSE(has_left(1, 0));
  REQUIRE_FALSE(has_left(2, 0));
}

TEST_CASE("a host that goes while its workers save has as long as they take", "[unit][fan_out]") {
  FanOutSettings settings = discovering();
  settings.drain_signals = {SIGUSR1};
  Front front{settings};
  front.step(fan::Begin{});
  front.step(fan::Listed{hosts({"a", "b"})});
  front.hello(0);
  front.hello(1);
  front.step(fan::SignalCame{SIGUSR1});
  front.step(fan::Listed{hosts({"b"})});
  REQUIRE(front.pass(1h).empty());
  SECTION("until the job is over") {
    front.step(fan::JobOver{75});
    REQUIRE(front.pass(settings.end_told) == "warning: waiting for agents that have been told to end: a, b\n");
  }
  SECTION("and the job is not without a host meanwhile") {
    front.ended(1, 143);
    REQUIRE(front.pass(settings.join_timeout + 1h).find("error") == std::string::npos);
    front.ended(0, 143);
    REQUIRE(front.pass(settings.join_timeout - 1ns).find("error") == std::string::npos);
    REQUIRE(front.pass(1ns).find("error: no host is there within the join timeout") != std::string::npos);
  }
  SECTION("and is as any other when it comes back") {
    front.ended(0, 143);
    front.step(fan::Listed{hosts({"a", "b"})});
    front.hello(2);
    front.step(fan::Listed{hosts({"b"})});
    REQUIRE(front.pass(settings.end_told) == "warning: waiting for agents that have been told to end: a\n");
  }
}

TEST_CASE("a discovered host that fails is tried again at growing distances", "[unit][fan_out]") {
  Front front{discovering()};
  front.step(fan::Begin{});
  front.step(fan::Listed{hosts({"a", "b"})});
  front.hello(0);
  REQUIRE(front.broken(1) == "close 1\nwarning: host b: ssh ended with 255; tried again in 10 s\nexpect 1 or others\n");
  REQUIRE(front.pass(10s - 1ns).empty());
  REQUIRE(front.pass(1ns) == "start 2 b as node 1\nexpect 2 or others\n");
  std::uint64_t link = 2;
  for (const Duration pause : {20s, 40s, 80s, 160s, 300s, 300s}) {
    REQUIRE(front.broken(link++).find(fmt::format("tried again in {} s", pause / 1s)) != std::string::npos);
    REQUIRE(front.pass(pause - 1ns).empty());
    REQUIRE(front.pass(1ns) == fmt::format("start {} b as node 1\nexpect 2 or others\n", link));
  }
  SECTION("from the beginning, after it has worked for long") {
    front.hello(link);
    front.now += host_forgiven_after;
    REQUIRE(front.broken(link).find("tried again in 10 s") != std::string::npos);
  }
  SECTION("not before that") {
    front.hello(link);
    front.now += host_forgiven_after - 1ns;
    REQUIRE(front.broken(link).find("tried again in 300 s") != std::string::npos);
  }
}

TEST_CASE("a job without any host is given up after the join timeout", "[unit][fan_out]") {
  Front front{discovering()};
  front.step(fan::Begin{});
  REQUIRE(front.machine.deadline() == TimePoint{} + 600s);
  REQUIRE(front.pass(600s - 1ns).empty());
  REQUIRE(front.pass(1ns).ends_with("finish 66\n"));
}

TEST_CASE("events of a link that is gone are not heard", "[unit][fan_out]") {
  Front front{of({"a", "b"}, 1)};
  front.begin(2);
  front.broken(0);
  REQUIRE(front.broken(0).empty());
  REQUIRE(front.ended(0, 0).empty());
  REQUIRE(front.hello(7).empty());
  REQUIRE(front.step(fan::RefusalCame{HostLink{9}, {2, "x"}}).empty());
}
