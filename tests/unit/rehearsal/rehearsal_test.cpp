#include "launcher/core/rehearsal/rehearsal.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <limits>
#include <set>

using namespace torchup;
using namespace torchup::rehearsal;
using namespace std::chrono_literals;

namespace {

constexpr TimePoint t0{1000s};

Rehearsal make(std::string_view text, std::optional<RehearsalStart> start = {}) {
  auto script = parse_rehearsal(text);
  if (!script) FAIL(script.error().message());
  return Rehearsal{*std::move(script), start};
}

/// A round of nodes with two workers each.
RoundBegins round_of(int node, int nodes = 2) {
  return {.group_rank = GroupRank{node},
          .group_world_size = nodes,
          .first_rank = Rank{2 * node},
          .local_world_size = 2,
          .world_size = 2 * nodes};
}

/// Both workers have ended the step at that time.
ProgressSeen both(std::int64_t step, TimePoint when, std::uint64_t count = 0) {
  const auto ns = std::chrono::nanoseconds{when.time_since_epoch()}.count();
  const std::uint64_t progress = count == 0 ? static_cast<std::uint64_t>(step) : count;
  return {{{LocalRank{0}, progress, ns, step}, {LocalRank{1}, progress, ns, step}}};
}

std::string text_of(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) {
    if (!text.empty()) text += " | ";
    if (const auto* inject = std::get_if<Inject>(&action))
      text += fmt::format("{} on {}", to_text(inject->action), inject->local_rank.value());
    else
      text += "told " + std::get<Tell>(action).text;
  }
  return text;
}

}  // namespace

TEST_CASE("a fault comes at its time, counted from the first round, where its rank is", "[unit][rehearsal]") {
  auto first = make("at 5s kill rank=3 signal=TERM; at 7s stop rank=0 for=1s");
  auto second = first;
  REQUIRE_FALSE(first.deadline());
  REQUIRE(first.step(Wake{}, t0 - 50s).empty());
  REQUIRE(first.step(round_of(0), t0).empty());
  REQUIRE(second.step(round_of(1), t0).empty());
  REQUIRE(first.deadline() == t0 + 5s);
  REQUIRE(second.step(Wake{}, t0 + 5s - 1ns).empty());
  REQUIRE(first.step(Wake{}, t0 + 5s).empty());
  REQUIRE(text_of(second.step(Wake{}, t0 + 5s)) == "kill rank=3 signal=SIGTERM on 1");
  REQUIRE(text_of(second.step(Injected{0}, t0 + 5s)) == "told kill rank=3 signal=SIGTERM at 5 s");
  REQUIRE(second.step(Wake{}, t0 + 6s).empty());
  REQUIRE(text_of(first.step(Wake{}, t0 + 7s)).starts_with("stop rank=0 for=1s on 0"));
  REQUIRE_FALSE(first.deadline());
}

TEST_CASE("a rank is whoever has it then, a node is that of the first round", "[unit][rehearsal]") {
  auto rehearsal = make("at 5s kill rank=0; at 6s cut node=0 for=1s; at 7s cut node=1 for=1s");
  rehearsal.step(round_of(1), t0);
  rehearsal.step(RoundEnds{}, t0 + 1s);
  rehearsal.step(round_of(0), t0 + 2s);  // it has changed its place
  REQUIRE(text_of(rehearsal.step(Wake{}, t0 + 5s)).starts_with("kill rank=0 on 0"));
  REQUIRE(rehearsal.step(Wake{}, t0 + 6s).empty());
  REQUIRE(text_of(rehearsal.step(Wake{}, t0 + 7s)).starts_with("cut node=1 for=1s on 0"));
}

TEST_CASE("a fault comes once when a worker has ended the step", "[unit][rehearsal]") {
  auto rehearsal = make("at step 20 kill rank=1");
  rehearsal.step(round_of(0), t0);
  REQUIRE(rehearsal.step(both(19, t0 + 1s), t0 + 1s).empty());
  REQUIRE(text_of(rehearsal.step(both(22, t0 + 2s), t0 + 2s)).starts_with("kill rank=1 on 1"));
  rehearsal.step(RoundEnds{}, t0 + 2s);
  rehearsal.step(round_of(0), t0 + 3s);
  REQUIRE(rehearsal.step(both(20, t0 + 4s), t0 + 4s).empty());
}

TEST_CASE("every comes again, as often as it says", "[unit][rehearsal]") {
  auto rehearsal = make("every 2s slow rank=0 by=50% for=1s times=3");
  rehearsal.step(round_of(0), t0);
  int came = 0;
  for (int second = 1; second <= 20; ++second)
    came += rehearsal.step(Wake{}, t0 + std::chrono::seconds{second}).empty() ? 0 : 1;
  REQUIRE(came == 3);
  REQUIRE_FALSE(rehearsal.deadline());
}

TEST_CASE("a rehearsal has at most 1000 faults", "[unit][rehearsal]") {
  auto rehearsal = make("every 100ms slow rank=0 by=1% for=1ms; every 100ms slow rank=0 by=2% for=1ms");
  rehearsal.step(round_of(0), t0);
  rehearsal.step(Wake{}, t0 + 3600s);
  REQUIRE(rehearsal.ended({}).faults.size() == rehearsal_faults_max);
  REQUIRE_FALSE(rehearsal.deadline());
}

TEST_CASE("chance is the seed's, alike on all nodes", "[unit][rehearsal]") {
  std::set<std::string> courses;
  for (int seed = 0; seed < 20; ++seed) {
    const auto script =
        fmt::format("every 1s kill rank=random times=4; every 1s cut node=random for=1s times=4; seed={}", seed);
    std::vector<std::string> faults[3];
    for (int node = 0; node < 3; ++node) {
      auto rehearsal = make(script);
      rehearsal.step(round_of(node, 3), t0);
      std::string own;
      for (int second = 1; second <= 4; ++second)
        own += text_of(rehearsal.step(Wake{}, t0 + std::chrono::seconds{second}));
      const auto result = rehearsal.ended({});
      for (const auto& fault : result.faults) faults[node].push_back(fault.text);
      for (const auto& text : faults[node]) {
        if (own.find(text.substr(0, text.find(" (random)")) + " on ") == std::string::npos) continue;
        CHECK((text.find(fmt::format("rank={} ", 2 * node)) != std::string::npos ||
               text.find(fmt::format("rank={} ", 2 * node + 1)) != std::string::npos ||
               text.find(fmt::format("node={} ", node)) != std::string::npos));
      }
    }
    REQUIRE(faults[0].size() == 8);
    REQUIRE(faults[0] == faults[1]);
    REQUIRE(faults[0] == faults[2]);
    REQUIRE(faults[0][0].ends_with("(random)"));
    courses.insert(fmt::format("{}", fmt::join(faults[0], ";")));
  }
  REQUIRE(courses.size() == 20);
}

TEST_CASE("a fault of a rank between two rounds comes with the next one", "[unit][rehearsal]") {
  auto rehearsal = make("at 5s kill rank=1; at 5s cut node=0 for=1s");
  rehearsal.step(round_of(0), t0);
  rehearsal.step(RoundEnds{}, t0 + 4s);
  REQUIRE(text_of(rehearsal.step(Wake{}, t0 + 5s)).starts_with("cut node=0 for=1s on 0"));
  REQUIRE(text_of(rehearsal.step(round_of(0), t0 + 8s)) == "kill rank=1 on 1");
  REQUIRE(text_of(rehearsal.step(Injected{1}, t0 + 8s)) == "told kill rank=1 at 8 s");
  auto other = make("at 5s kill rank=1");
  other.step(round_of(0), t0);
  other.step(RoundEnds{}, t0 + 4s);
  other.step(Wake{}, t0 + 5s);
  REQUIRE(other.ended({}).text == "rehearsal failed: at 5s kill rank=1 did not come before the end");
}

TEST_CASE("a target that is not there is told, and the rehearsal fails", "[unit][rehearsal]") {
  auto rehearsal = make("at 1s kill rank=4; at 2s cut node=2 for=1s; at 3s kill node=1; at 4s leave node=1");
  rehearsal.step(round_of(0), t0);
  REQUIRE(text_of(rehearsal.step(Wake{}, t0 + 1s)) == "told kill rank=4 at 1 s: no rank 4 among 4");
  REQUIRE(text_of(rehearsal.step(Wake{}, t0 + 2s)) == "told cut node=2 for=1s at 2 s: no node 2 among 2");
  REQUIRE(rehearsal.step(Wake{}, t0 + 3s).empty());
  REQUIRE(text_of(rehearsal.step(Wake{}, t0 + 4s)) == "told leave node=1 at 4 s: node 1 is away");
  const auto result = rehearsal.ended({});
  REQUIRE_FALSE(result.passed);
  REQUIRE(result.text ==
          "rehearsal failed: kill rank=4 had no target; cut node=2 for=1s had no target; leave node=1 had no target");
  REQUIRE(result.exit_code == 1);
}

TEST_CASE("a node is away until it is back, and is not drawn meanwhile", "[unit][rehearsal]") {
  auto rehearsal = make("at 1s kill node=1 back=5s; every 1s cut node=random for=1s times=20");
  rehearsal.step(round_of(0), t0);
  for (int second = 1; second <= 20; ++second) rehearsal.step(Wake{}, t0 + std::chrono::seconds{second});
  std::set<std::string> drawn_while_away, drawn_later;
  const auto result = rehearsal.ended({});
  for (const auto& fault : result.faults) {
    if (!fault.text.starts_with("cut")) continue;
    (fault.at < 6s ? drawn_while_away : drawn_later).insert(fault.text);
  }
  REQUIRE(drawn_while_away == std::set<std::string>{"cut node=0 for=1s (random)"});
  REQUIRE(drawn_later.size() == 2);
  auto alone = make("at 1s leave node=0; at 2s leave node=random");
  alone.step(round_of(0, 1), t0);
  alone.step(Wake{}, t0 + 1s);
  REQUIRE(text_of(alone.step(Wake{}, t0 + 2s)) == "told leave node=random at 2 s: no node is left");
}

TEST_CASE("an agent that is started again goes on where the job is", "[unit][rehearsal]") {
  const std::string script =
      "at 5s kill node=1 back=3s; at step 10 stop node=1 for=1s; at 6s kill rank=2; at 12s kill rank=2";
  auto before = make(script);
  before.step(round_of(1), t0);
  REQUIRE_FALSE(before.step(both(10, t0 + 4s), t0 + 4s).empty());
  const auto actions = before.step(Wake{}, t0 + 5s);
  const auto restart = std::get<Inject>(actions.at(0)).restart;
  REQUIRE(restart == RehearsalStart{t0, GroupRank{1}, 2, 10});

  auto after = make(script, restart);
  REQUIRE(after.step(round_of(1), t0 + 9s).empty());
  REQUIRE(after.step(both(10, t0 + 10s), t0 + 10s).empty());  // the steps of a checkpoint come once more
  REQUIRE(after.deadline() == t0 + 12s);
  REQUIRE(text_of(after.step(Wake{}, t0 + 12s)).starts_with("kill rank=2 on 0"));
}

TEST_CASE("an agent that is started again draws as the others do", "[unit][rehearsal]") {
  const std::string script = "at 1s kill node=0; at 2s kill node=2 back=3s; every 10s cut node=random for=1s times=8";
  auto other = make(script);
  other.step(round_of(1, 4), t0);
  auto again = make(script, RehearsalStart{t0, GroupRank{2}, 4, -1});
  other.step(Wake{}, t0 + 6s);
  again.step(round_of(2, 4), t0 + 6s);
  for (int turn = 1; turn <= 8; ++turn) {
    other.step(Wake{}, t0 + turn * 10s);
    again.step(Wake{}, t0 + turn * 10s);
  }
  const auto all = other.ended({}).faults, own = again.ended({}).faults;
  REQUIRE(own.size() == 8);
  for (std::size_t i = 0; i < 8; ++i) CHECK(own[i].text == all[i + 2].text);
}

TEST_CASE("the first and the last rank and node are drawn as well, and none beyond", "[unit][rehearsal]") {
  std::set<std::string> drawn;
  for (int seed = 0; seed < 40; ++seed) {
    auto rehearsal = make(fmt::format("at 1s kill rank=random; at 1s cut node=random for=1s; seed={}", seed));
    rehearsal.step(round_of(0, 3), t0);
    rehearsal.step(Wake{}, t0 + 1s);
    for (const auto& fault : rehearsal.ended({}).faults) drawn.insert(fault.text);
  }
  std::set<std::string> all;
  for (int rank = 0; rank < 6; ++rank) all.insert(fmt::format("kill rank={} (random)", rank));
  for (int node = 0; node < 3; ++node) all.insert(fmt::format("cut node={} for=1s (random)", node));
  REQUIRE(drawn == all);
}

TEST_CASE("where there is one rank of one node, chance finds them", "[unit][rehearsal]") {
  auto rehearsal = make("at 1s kill rank=random; at 1s cut node=random for=1s; seed=18446744073709551615");
  rehearsal.step(RoundBegins{}, t0);
  REQUIRE(text_of(rehearsal.step(Wake{}, t0 + 1s)) == "kill rank=0 on 0 | cut node=0 for=1s on 0");
}

TEST_CASE("a node is drawn again at the very moment at which it is back", "[unit][rehearsal]") {
  auto rehearsal = make("at 1s kill node=0 back=4s; at 5s cut node=random for=1s");
  rehearsal.step(round_of(0, 1), t0);
  REQUIRE(text_of(rehearsal.step(Wake{}, t0 + 5s)) == "kill node=0 back=4s on 0 | cut node=0 for=1s on 0");
}

TEST_CASE("a stop on another node is known to all who wait for it", "[unit][rehearsal]") {
  for (const char* const fault : {"stop rank=3 for=2s", "slow rank=3 by=900% for=2s", "stop node=1 for=2s"}) {
    auto rehearsal = make(fmt::format("at 1s {}", fault));
    rehearsal.step(round_of(0), t0);
    REQUIRE_FALSE(rehearsal.stops_somebody(t0));
    REQUIRE(rehearsal.step(Wake{}, t0 + 1s).empty());
    CHECK(rehearsal.stops_somebody(t0 + 3s));
    CHECK_FALSE(rehearsal.stops_somebody(t0 + 3s + 1ns));
    CHECK_FALSE(rehearsal.stops(LocalRank{0}, t0 + 2s));
    CHECK_FALSE(rehearsal.stops(LocalRank{1}, t0 + 2s));
    CHECK_FALSE(rehearsal.stops_node(t0 + 2s));
  }
}

TEST_CASE("a node's stop is known a little longer than it lasts", "[unit][rehearsal]") {
  auto rehearsal = make("at 1s stop node=0 for=2s");
  rehearsal.step(round_of(0), t0);
  REQUIRE_FALSE(rehearsal.stops_node(t0));
  rehearsal.step(Wake{}, t0 + 1s);
  rehearsal.step(Wake{}, t0 + 3s + node_stop_slack);
  REQUIRE(rehearsal.stops_node(t0 + 3s + node_stop_slack));
  REQUIRE_FALSE(rehearsal.stops_node(t0 + 3s + node_stop_slack + 1ns));
  REQUIRE_FALSE(rehearsal.stops(LocalRank{0}, t0 + 3s + 1ns));
}

TEST_CASE("the stop of a worker that was being started lasts from its start", "[unit][rehearsal]") {
  auto rehearsal = make("at 1s stop rank=0 for=2s");
  rehearsal.step(round_of(0), t0);
  rehearsal.step(Wake{}, t0 + 1s);
  rehearsal.step(Injected{0}, t0 + 5s);
  REQUIRE(rehearsal.stops(LocalRank{0}, t0 + 7s));
  REQUIRE_FALSE(rehearsal.stops(LocalRank{0}, t0 + 7s + 1ns));
  rehearsal.step(both(1, t0 + 4s), t0 + 4s);
  rehearsal.step(both(2, t0 + 6s), t0 + 6s);
  REQUIRE_FALSE(rehearsal.ended({}).faults[0].going_on_after);
  rehearsal.step(both(3, t0 + 8s), t0 + 8s);
  REQUIRE(rehearsal.ended({}).faults[0].going_on_after == 7s);
}

TEST_CASE("nothing comes once the job is to end", "[unit][rehearsal]") {
  auto rehearsal = make("every 1s kill rank=0; at step 5 kill rank=0; at 3s cut node=0 for=1s");
  rehearsal.step(round_of(0), t0);
  REQUIRE(text_of(rehearsal.step(Wake{}, t0 + 1s)) == "kill rank=0 on 0");
  REQUIRE(rehearsal.step(JobEnds{}, t0 + 5s).empty());
  REQUIRE_FALSE(rehearsal.deadline());
  REQUIRE(rehearsal.step(both(9, t0 + 6s), t0 + 6s).empty());
  REQUIRE(rehearsal.ended({}).faults.size() == 1);
}

TEST_CASE("our own stops are known", "[unit][rehearsal]") {
  auto rehearsal = make("at 1s stop rank=1 for=3s; at 10s stop node=0 for=2s");
  rehearsal.step(round_of(0), t0);
  REQUIRE_FALSE(rehearsal.stops(LocalRank{1}, t0));
  rehearsal.step(Wake{}, t0 + 1s);
  REQUIRE(rehearsal.stops(LocalRank{1}, t0 + 4s));
  REQUIRE_FALSE(rehearsal.stops(LocalRank{0}, t0 + 2s));
  REQUIRE_FALSE(rehearsal.stops(LocalRank{1}, t0 + 4s + 1ns));
  rehearsal.step(Wake{}, t0 + 10s);
  REQUIRE(rehearsal.stops(LocalRank{0}, t0 + 11s));
}

TEST_CASE("the stop of a worker ends with its round, that of a node does not", "[unit][rehearsal]") {
  auto rehearsal = make("at 1s stop rank=1 for=60s; at 2s stop node=0 for=60s");
  rehearsal.step(round_of(0), t0);
  rehearsal.step(Wake{}, t0 + 1s);
  rehearsal.step(RoundEnds{}, t0 + 1500ms);
  REQUIRE_FALSE(rehearsal.stops(LocalRank{1}, t0 + 1500ms));
  rehearsal.step(Wake{}, t0 + 2s);
  REQUIRE(rehearsal.stops(LocalRank{1}, t0 + 3s));
  rehearsal.step(round_of(0), t0 + 3s);
  REQUIRE(rehearsal.stops(LocalRank{1}, t0 + 3s));
}

TEST_CASE("a fault that was not brought about has no target", "[unit][rehearsal]") {
  auto rehearsal = make("at 1s stop rank=1 for=60s; at 2s kill rank=0; expect recovery<=1s");
  rehearsal.step(round_of(0), t0);
  rehearsal.step(Wake{}, t0 + 1s);
  REQUIRE(text_of(rehearsal.step(NotInjected{0, "its worker has ended"}, t0 + 1s)) ==
          "told stop rank=1 for=60s at 1 s: its worker has ended");
  REQUIRE_FALSE(rehearsal.stops(LocalRank{1}, t0 + 1s));
  REQUIRE(rehearsal.step(NotInjected{7, "there is none"}, t0 + 1s).empty());
  rehearsal.step(Wake{}, t0 + 2s);
  rehearsal.step(RoundEnds{true}, t0 + 2500ms);
  REQUIRE(rehearsal.ended({}).text == "rehearsal failed: stop rank=1 for=60s had no target");
}

TEST_CASE("workers that have all ended well went on", "[unit][rehearsal]") {
  auto rehearsal = make("at 1s stop rank=1 for=1s");
  rehearsal.step(round_of(0), t0);
  rehearsal.step(both(3, t0 + 900ms), t0 + 900ms);
  rehearsal.step(Wake{}, t0 + 1s);
  SECTION("without a further step") {
    rehearsal.step(RoundEnds{true}, t0 + 3s);
    REQUIRE(rehearsal.ended({}).faults == std::vector<RehearsedFault>{{"stop rank=1 for=1s", 1s, false, {}, 2s, 0}});
  }
  SECTION("unlike those that were stopped") {
    rehearsal.step(RoundEnds{false}, t0 + 3s);
    REQUIRE(rehearsal.ended({}).faults == std::vector<RehearsedFault>{{"stop rank=1 for=1s", 1s, false, 2s, {}, {}}});
  }
}

TEST_CASE("a slow rank is stopped by/(1+by) of the time", "[unit][rehearsal]") {
  REQUIRE(slow_stopped_part(100) == 10ms);
  REQUIRE(slow_stopped_part(300) == 15ms);
  REQUIRE(slow_stopped_part(0) == 0ms);
  REQUIRE(slow_stopped_part(1 << 30) < slow_period);
}

TEST_CASE("a restart's recovery and lost steps are measured", "[unit][rehearsal]") {
  auto rehearsal = make("at 5s kill rank=1");
  rehearsal.step(round_of(0), t0);
  rehearsal.step(both(47, t0 + 4800ms), t0 + 4900ms);
  rehearsal.step(Wake{}, t0 + 5s);
  rehearsal.step(both(48, t0 + 4950ms), t0 + 5050ms);  // ended before the fault
  rehearsal.step(TroubleSeen{}, t0 + 5100ms);
  rehearsal.step(RoundEnds{}, t0 + 5200ms);
  rehearsal.step(round_of(0), t0 + 6s);
  rehearsal.step(both(48, t0 + 4950ms, 48), t0 + 6500ms);  // what a kept worker's page still says
  REQUIRE_FALSE(rehearsal.ended({}).faults[0].going_on_after);
  rehearsal.step(both(41, t0 + 7s, 1), t0 + 7100ms);
  const auto result = rehearsal.ended({});
  REQUIRE(result.faults == std::vector<RehearsedFault>{{"kill rank=1", 5s, false, 100ms, 2s, 8}});
  REQUIRE(result.passed);
  REQUIRE(result.text == "rehearsal passed");
  REQUIRE(rehearsal_table(result.faults) ==
          std::vector<std::string>{"fault        at   noticed after  going on after  steps lost",
                                   "kill rank=1  5 s  100 ms         2 s             8"});
}

TEST_CASE("within a round all workers must get on twice: one step may have been all but done", "[unit][rehearsal]") {
  auto rehearsal = make("at 5s stop rank=3 for=2s");
  rehearsal.step(round_of(0), t0);
  rehearsal.step(both(50, t0 + 4900ms), t0 + 4900ms);
  rehearsal.step(Wake{}, t0 + 5s);
  rehearsal.step(both(51, t0 + 5010ms), t0 + 5100ms);
  rehearsal.step(both(51, t0 + 5010ms), t0 + 6s);
  REQUIRE_FALSE(rehearsal.ended({}).faults[0].going_on_after);
  ProgressSeen one = both(52, t0 + 7100ms);
  one.workers.pop_back();
  rehearsal.step(one, t0 + 7200ms);
  REQUIRE_FALSE(rehearsal.ended({}).faults[0].going_on_after);
  rehearsal.step(both(52, t0 + 7100ms), t0 + 7300ms);
  const auto fault = rehearsal.ended({}).faults[0];
  REQUIRE(fault.going_on_after == 2100ms);
  REQUIRE_FALSE(fault.noticed_after);
  REQUIRE(fault.steps_lost == 0);
}

TEST_CASE("a slow rank gets on all the while", "[unit][rehearsal]") {
  auto rehearsal = make("at 5s slow rank=3 by=30% for=60s");
  rehearsal.step(round_of(0), t0);
  rehearsal.step(Wake{}, t0 + 5s);
  rehearsal.step(both(51, t0 + 5100ms), t0 + 5200ms);
  REQUIRE_FALSE(rehearsal.ended({}).faults[0].going_on_after);
  rehearsal.step(both(52, t0 + 5300ms), t0 + 5400ms);
  REQUIRE(rehearsal.ended({}).faults[0].going_on_after == 300ms);
}

TEST_CASE("what a cut does may come late", "[unit][rehearsal]") {
  auto rehearsal = make("at 5s cut node=1 for=3s");
  rehearsal.step(round_of(0), t0);
  rehearsal.step(Wake{}, t0 + 5s);
  for (int tenth = 51; tenth < 80; ++tenth) {
    rehearsal.step(both(tenth, t0 + tenth * 100ms), t0 + tenth * 100ms);
  }
  REQUIRE_FALSE(rehearsal.ended({}).faults[0].going_on_after);
  SECTION("or not at all") {
    rehearsal.step(both(81, t0 + 8100ms), t0 + 8100ms);
    REQUIRE(rehearsal.ended({}).faults[0].going_on_after == 3100ms);
  }
  SECTION("and then the next round goes on before its end") {
    rehearsal.step(RoundEnds{}, t0 + 7s);
    rehearsal.step(round_of(0), t0 + 7100ms);
    rehearsal.step(both(1, t0 + 7500ms), t0 + 7600ms);
    REQUIRE(rehearsal.ended({}).faults[0].going_on_after == 2500ms);
  }
}

TEST_CASE("with a node that is gone nobody goes on in its round", "[unit][rehearsal]") {
  auto rehearsal = make("at 5s kill node=1; at 5s leave node=2");
  rehearsal.step(round_of(0, 3), t0);
  rehearsal.step(Wake{}, t0 + 5s);
  rehearsal.step(both(1, t0 + 5100ms), t0 + 5200ms);
  rehearsal.step(both(2, t0 + 5300ms), t0 + 5400ms);
  rehearsal.step(RoundEnds{}, t0 + 6s);
  rehearsal.step(round_of(0, 1), t0 + 7s);
  rehearsal.step(both(1, t0 + 8s), t0 + 8s);
  for (const auto& fault : rehearsal.ended({}).faults) CHECK(fault.going_on_after == 3s);
}

TEST_CASE("a leave that is seen by its step only in the next round is over when that one goes on",
          "[unit][rehearsal]") {
  auto rehearsal = make("at step 10 leave node=1");
  rehearsal.step(round_of(0), t0);
  rehearsal.step(both(9, t0 + 5s), t0 + 5s);
  rehearsal.step(RoundEnds{}, t0 + 5100ms);
  rehearsal.step(round_of(0, 1), t0 + 6s);
  rehearsal.step(both(10, t0 + 7s, 1), t0 + 7s);
  rehearsal.step(both(11, t0 + 7100ms, 2), t0 + 7100ms);
  rehearsal.step(both(12, t0 + 7200ms, 3), t0 + 7200ms);
  REQUIRE_FALSE(rehearsal.ended({}).faults[0].going_on_after);  // this round may end by it yet
  SECTION("well") {
    rehearsal.step(RoundEnds{true}, t0 + 60s);
    REQUIRE(rehearsal.ended({}).faults[0].going_on_after == 200ms);
    REQUIRE_FALSE(rehearsal.ended({}).faults[0].steps_lost);
  }
  SECTION("or not") {
    rehearsal.step(RoundEnds{}, t0 + 8s);
    rehearsal.step(round_of(0, 1), t0 + 9s);
    rehearsal.step(both(12, t0 + 10s, 1), t0 + 10s);
    REQUIRE(rehearsal.ended({}).faults[0].going_on_after == 3s);
  }
}

TEST_CASE("whoever only counts steps does not tell how many were lost", "[unit][rehearsal]") {
  auto rehearsal = make("at 5s kill rank=1");
  rehearsal.step(round_of(0), t0);
  rehearsal.step(both(20, t0 + 4s), t0 + 4s);
  rehearsal.step(Wake{}, t0 + 5s);
  rehearsal.step(RoundEnds{}, t0 + 5s);
  rehearsal.step(round_of(0), t0 + 6s);
  SECTION("from its start on") {
    rehearsal.step(both(1, t0 + 7s, 1), t0 + 7s);
    REQUIRE_FALSE(rehearsal.ended({}).faults[0].steps_lost);
  }
  SECTION("unless it was kept, and counts on") {
    rehearsal.step(both(21, t0 + 7s, 21), t0 + 7s);
    REQUIRE(rehearsal.ended({}).faults[0].steps_lost == 0);
  }
  REQUIRE(rehearsal.ended({}).faults[0].going_on_after == 2s);
}

TEST_CASE("progress of strangers' times, ranks and steps breaks nothing", "[unit][rehearsal]") {
  auto rehearsal = make("at 1s kill rank=1");
  rehearsal.step(round_of(0), t0);
  rehearsal.step(Wake{}, t0 + 1s);
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  ProgressSeen seen;
  for (const int local : {-1, 0, 1, 2, 1 << 20}) {
    seen.workers.push_back({LocalRank{local}, 1, huge, huge});
    seen.workers.push_back({LocalRank{local}, 2, -huge - 1, -huge});
  }
  rehearsal.step(seen, t0 + 2s);
  rehearsal.step(RoundEnds{}, t0 + 3s);
  rehearsal.step(round_of(0), t0 + 4s);
  rehearsal.step(seen, t0 + 5s);
  const auto fault = rehearsal.ended({}).faults[0];
  REQUIRE(fault.going_on_after == 4s);
  REQUIRE(fault.steps_lost.value_or(0) >= 0);
}

TEST_CASE("the end is held against what was expected", "[unit][rehearsal]") {
  const auto end = [](const std::string& script, const RehearsedJob& job) { return make(script).ended(job); };
  CHECK(end("expect ranks=4", {0, 0, 4}).text == "rehearsal passed");
  CHECK(end("seed=1", {1, 0, 4}).text == "rehearsal failed: expected exit=0, was 1");
  CHECK(end("seed=1", {3, 0, 4}).exit_code == 3);
  CHECK(end("expect exit=3", {3, 0, 4}).passed);
  CHECK(end("expect exit=3", {3, 0, 4}).exit_code == 0);
  CHECK(end("expect restarts=0", {0, 1, 4}).text == "rehearsal failed: expected restarts=0, was 1");
  CHECK(end("expect restarts=0", {0, 1, 4}).exit_code == 1);
  CHECK(end("expect restarts<=1", {0, 1, 4}).passed);
  CHECK(end("expect restarts<=1", {0, 2, 4}).text == "rehearsal failed: expected restarts<=1, was 2");
  CHECK(end("expect restarts=2", {0, 1, 4}).text == "rehearsal failed: expected restarts=2, was 1");
  CHECK(end("expect ranks=4 restarts=0", {9, 1, 3}).text ==
        "rehearsal failed: expected exit=0, was 9; expected restarts=0, was 1; expected ranks=4, was 3");
  CHECK(rehearsal_table(end("expect ranks=4", {0, 0, 4}).faults).empty());
}

TEST_CASE("the worst recovery is held against the expected one", "[unit][rehearsal]") {
  auto rehearsal = make("at 5s kill rank=1; expect recovery<=2s");
  rehearsal.step(round_of(0), t0);
  rehearsal.step(Wake{}, t0 + 5s);
  REQUIRE(rehearsal.ended({}).text == "rehearsal failed: expected recovery<=2s, was never (kill rank=1)");
  REQUIRE(rehearsal_table(rehearsal.ended({}).faults).at(1).find("never") != std::string::npos);
  rehearsal.step(RoundEnds{}, t0 + 5s);
  rehearsal.step(round_of(0), t0 + 6s);
  auto slower = rehearsal;
  rehearsal.step(both(1, t0 + 7s), t0 + 7s);
  REQUIRE(rehearsal.ended({}).passed);
  slower.step(both(1, t0 + 7s + 100ms), t0 + 8s);
  REQUIRE(slower.ended({}).text == "rehearsal failed: expected recovery<=2s, was 2.1 s (kill rank=1)");
}

TEST_CASE("a fault that never came was not rehearsed", "[unit][rehearsal]") {
  auto rehearsal = make("at 100s kill rank=1; at step 5 kill rank=1; every 50s cut node=0 for=1s");
  rehearsal.step(round_of(0), t0);
  rehearsal.step(Wake{}, t0 + 50s);
  REQUIRE(
      rehearsal.ended({}).text ==
      "rehearsal failed: at 100s kill rank=1 did not come before the end; at step 5 kill rank=1 did not come before "
      "the end");
}

TEST_CASE("of many reasons eight are told", "[unit][rehearsal]") {
  std::string script;
  for (int i = 0; i < 9; ++i) script += "at 100s kill rank=1\n";
  const std::string text = make(script).ended({}).text;
  REQUIRE(text.ends_with("and 1 more"));
}
