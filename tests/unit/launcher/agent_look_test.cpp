#include <catch2/catch.hpp>

#include "tests/unit/launcher/hanging_agent.hpp"

namespace torchup {

using namespace hanging_agent;

TEST_CASE("however short all may be silent, the looks at the workers have a pace", "[unit][agent][hang]") {
  REQUIRE(Running{given(100ms)}.agent.step_interval() == 100ms);
  REQUIRE(Running{given(2s)}.agent.step_interval() == 500ms);
  REQUIRE(Running{given(60s)}.agent.step_interval() == 1s);
  LaunchConfig config = given(60s);
  config.terms.hang_timeout.start = 1s;
  REQUIRE(Running{config}.agent.step_interval() == 250ms);
  REQUIRE(Running{two_workers()}.agent.step_interval() == 1s);
  config.terms.hang_timeout.mode = HangTimeout::Mode::off;
  REQUIRE(Running{config}.agent.step_interval() == 1s);
}

TEST_CASE("what workers show of their progress is reported", "[unit][agent][hang]") {
  Running job;
  const auto first = report_in(job.agent.step(steps(1, t0 + 1s), t0 + 1s));
  REQUIRE(first.has_value());
  REQUIRE((first->watched && first->progressed && first->silence == 0s));
  REQUIRE(report_in(job.agent.step(steps(1, t0 + 1s), t0 + 2s))->silence == 1s);
  REQUIRE(report_in(job.agent.step(steps(2, t0 + 3s), t0 + 3s))->longest_gap == 2s);
  REQUIRE_FALSE(report_in(job.agent.step(steps(2, t0 + 3s), t0 + 4s))->ending);
  static_cast<void>(job.agent.step(ended(1, 0), t0 + 4s));
  REQUIRE(report_in(job.agent.step(steps(2, t0 + 3s), t0 + 5s))->ending);
  SECTION("also when all have ended well: others may wait for them") {
    static_cast<void>(job.agent.step(ended(0, 0), t0 + 5s));
    REQUIRE(report_in(job.agent.step(StepsSeen{}, t0 + 6s))->silence == 3s);
    static_cast<void>(job.agent.step(DescendantsGone{}, t0 + 6s));
    REQUIRE(report_in(job.agent.step(StepsSeen{}, t0 + 7s))->silence == 4s);
    static_cast<void>(
        job.agent.step(FromCoordinator{StopWorkers{Round{0}, StopCause::membership_change, "x"}}, t0 + 7s));
    REQUIRE_FALSE(report_in(job.agent.step(StepsSeen{}, t0 + 8s)).has_value());  // said already, with Join
  }
}

TEST_CASE("time in which workers could not get on does not count", "[unit][agent][hang]") {
  LaunchConfig config = two_workers();
  config.drain_signals = {SIGUSR2};
  Running job{config};
  const TimePoint begin = t0 + 1s;
  static_cast<void>(job.agent.step(steps(3, begin), begin));
  REQUIRE(silence_after(job.agent, begin, 5) == 5s);
  const TimePoint now = begin + 5s;
  SECTION("Ctrl-Z") {
    static_cast<void>(job.agent.step(SignalArrived{SIGTSTP}, now));
    REQUIRE(silence_after(job.agent, now, 60) == 5s);
    static_cast<void>(job.agent.step(SignalArrived{SIGCONT}, now + 60s));
    REQUIRE(silence_after(job.agent, now + 60s, 3) == 8s);
  }
  SECTION("a drain") {
    static_cast<void>(job.agent.step(SignalArrived{SIGUSR2}, now));
    REQUIRE(silence_after(job.agent, now, 60) == 5s);
  }
  SECTION("a save") {
    REQUIRE(silence_after(job.agent, now, 60, true) == 5s);
    REQUIRE(silence_after(job.agent, now + 60s, 3) == 8s);
  }
  SECTION("a clock that jumps: docker pause, a suspended machine") {
    REQUIRE(report_in(job.agent.step(steps(3, begin), now + 100s))->silence == 5s);
    REQUIRE(silence_after(job.agent, now + 100s, 3) == 8s);
  }
}

TEST_CASE("a round that is over reports nothing more, and the next one begins anew", "[unit][agent][hang]") {
  Running job{two_workers(1)};
  static_cast<void>(job.agent.step(steps(3, t0), t0 + 1s));
  REQUIRE(silence_after(job.agent, t0 + 1s, 50) > 40s);
  const TimePoint now = t0 + 60s;
  static_cast<void>(job.agent.step(FromCoordinator{StopWorkers{Round{0}, StopCause::membership_change, "x"}}, now));
  REQUIRE(report_in(job.agent.step(steps(3, t0), now + 1s)) == ProgressReport{});
  REQUIRE_FALSE(report_in(job.agent.step(steps(3, t0), now + 2s)).has_value());
  static_cast<void>(job.agent.step(ended(0, -SIGTERM), now));
  static_cast<void>(job.agent.step(ended(1, -SIGTERM), now));
  static_cast<void>(job.agent.step(DescendantsGone{}, now));
  static_cast<void>(job.agent.step(FromCoordinator{placed(1)}, now + 2s));
  const auto report = report_in(job.agent.step(steps(3, t0), now + 3s));
  REQUIRE(report->silence == 1s);
  REQUIRE_FALSE(report->progressed);  // those steps are of the round before
}

TEST_CASE("the workers are looked at when the coordinator asks", "[unit][agent][hang]") {
  Running job;
  REQUIRE(*find<TakeLooks>(job.agent.step(FromCoordinator{Examine{7, true, false}}, t0)) ==
          TakeLooks{7, both, true, false});
  SECTION("and what was seen of them is the answer") {
    const auto actions = job.agent.step(LooksTaken{7, {looks::still(1), looks::moving(0)}, {}}, t0 + 1s);
    const auto answer = examined(actions);
    REQUIRE(answer.size() == 1);
    REQUIRE((answer.front().number == 7 && answer.front().last));
    const auto looks = unpack_looks(answer.front().part).value();
    REQUIRE(looks.size() == 2);
    REQUIRE((looks[0].rank == Rank{0} && looks[0].moving && !looks[1].moving));
  }
  SECTION("in parts where they are many") {
    std::vector<RankLook> many;
    for (int i = 0; i < 4000; ++i) {
      many.push_back(looks::still(i));
      for (int frame = 0; frame < 5; ++frame) many.back().frames.push_back({std::string(100, 'f'), "/x.py", frame});
    }
    const auto answer = examined(job.agent.step(LooksTaken{7, many, {}}, t0 + 1s));
    REQUIRE(answer.size() > 1);
    for (std::size_t i = 0; i < answer.size(); ++i) REQUIRE(answer[i].last == (i + 1 == answer.size()));
  }
  SECTION("who has ended well is known to be there no more") {
    static_cast<void>(job.agent.step(ended(1, 0), t0));
    REQUIRE(find<TakeLooks>(job.agent.step(FromCoordinator{Examine{8}}, t0))->workers == std::vector{LocalRank{0}});
    const auto answer = examined(job.agent.step(LooksTaken{8, {looks::still(0)}, {}}, t0));
    const auto looks = unpack_looks(answer.front().part).value();
    REQUIRE((looks.size() == 2 && has_ended(looks[1]) && looks[1].pid == 101));
  }
  SECTION("where none runs there is an answer too") {
    static_cast<void>(job.agent.step(SignalArrived{SIGTERM}, t0));
    const auto actions = job.agent.step(FromCoordinator{Examine{9}}, t0);
    REQUIRE_FALSE(find<TakeLooks>(actions));
    REQUIRE(examined(actions).front().last);
  }
}

}  // namespace torchup
