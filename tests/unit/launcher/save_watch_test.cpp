#include "launcher/core/agent/step_watch.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

constexpr TimePoint t0{100s};

std::int64_t ns(TimePoint time) { return std::chrono::nanoseconds{time.time_since_epoch()}.count(); }

StepSample at(int rank, std::int64_t step, TimePoint ended, std::optional<TimePoint> waiting_since = std::nullopt) {
  WorkerProgress progress{.beats = 3, .step = step, .ended_ns = ns(ended)};
  if (waiting_since) progress.waiting_since_ns = ns(*waiting_since);
  return {Rank{rank + 4}, LocalRank{rank}, progress};
}

StepSample pace(int rank, std::uint64_t beat, Duration took, Duration waited) {
  return {Rank{rank}, LocalRank{rank},
          WorkerProgress{.beats = beat,
                         .ended_ns = ns(t0),
                         .took_ns = std::chrono::nanoseconds{took}.count(),
                         .waited_ns = std::chrono::nanoseconds{waited}.count()}};
}

}  // namespace

TEST_CASE("the worker that others wait for is the one that hangs", "[unit][step_watch]") {
  StepWatch watch{30s};
  const std::vector<StepSample> samples{at(0, 12, t0, t0 + 1s), at(1, 12, t0), at(2, 12, t0, t0 + 1s)};
  REQUIRE_FALSE(watch.look(samples, false, t0 + 30s).hung);
  const auto hung = watch.look(samples, false, t0 + 31s).hung;
  REQUIRE(hung);
  REQUIRE(hung->workers == std::vector{LocalRank{1}});
  REQUIRE(hung->reason ==
          "rank 5 ended no step for 31.0 s (--heartbeat-timeout 30.0 s), the last one was step 12; ranks 4, 6 wait for "
          "others");
  REQUIRE_FALSE(watch.look(samples, false, t0 + 40s).hung);  // told once
}

TEST_CASE("workers that all wait are given twice the time: the fault may be on another node", "[unit][step_watch]") {
  StepWatch watch{30s};
  const std::vector<StepSample> samples{at(0, 12, t0, t0 + 1s), at(1, 12, t0, t0 + 1s)};
  REQUIRE_FALSE(watch.look(samples, false, t0 + 60s).hung);
  REQUIRE(watch.look(samples, false, t0 + 61s).hung->workers == std::vector{LocalRank{0}, LocalRank{1}});
}

TEST_CASE("workers that all wait, perhaps for another node that saves, are told and not aborted",
          "[unit][step_watch]") {
  StepWatch watch{30s, true};
  std::vector<StepSample> samples{at(0, 12, t0, t0 + 1s), at(1, 12, t0, t0 + 1s)};
  REQUIRE(watch.look(samples, false, t0 + 60s) == StepWatch::Findings{});
  const auto found = watch.look(samples, false, t0 + 61s);
  REQUIRE_FALSE(found.hung);
  REQUIRE(
      *found.warning ==
      "ranks 4, 5 ended no step for 61.0 s (--heartbeat-timeout 30.0 s), the last one was step 12; all of them wait "
      "for others, so they are not aborted: see the other nodes");
  REQUIRE(watch.look(samples, false, t0 + 62s) == StepWatch::Findings{});  // told once
}

TEST_CASE("a worker that others of its node wait for is aborted, whatever other nodes do", "[unit][step_watch]") {
  StepWatch watch{30s, true};
  const std::vector<StepSample> samples{at(0, 12, t0, t0 + 1s), at(1, 12, t0)};
  REQUIRE(watch.look(samples, false, t0 + 31s).hung->workers == std::vector{LocalRank{1}});
}

TEST_CASE("a save that takes long is told when it has taken the timeout, and twice as long", "[unit][step_watch]") {
  StepWatch watch{30s};
  std::vector<StepSample> samples{at(0, 12, t0, t0 + 1s), at(1, 12, t0)};
  samples[1].progress->saving_since_ns = ns(t0);
  REQUIRE_FALSE(watch.look(samples, false, t0 + 30s).warning);
  REQUIRE(
      *watch.look(samples, false, t0 + 31s).warning ==
      "rank 5 saves the state for 31.0 s; until that is done nobody is taken for hung (--heartbeat-timeout 30.0 s)");
  REQUIRE_FALSE(watch.look(samples, false, t0 + 62s).warning);
  REQUIRE(watch.look(samples, false, t0 + 63s).warning);
  samples[1].progress->saving_since_ns = 0;
  REQUIRE_FALSE(watch.look(samples, false, t0 + 64s).warning);
  samples[1].progress->saving_since_ns = ns(t0 + 64s);
  REQUIRE(watch.look(samples, false, t0 + 95s).warning);  // another save
  StepWatch off{Duration{0}};
  REQUIRE_FALSE(off.look(samples, false, t0 + 900s).warning);
}

TEST_CASE("before its first step, without a page or a timeout, nobody hangs", "[unit][step_watch]") {
  const std::vector<StepSample> silent{{Rank{0}, LocalRank{0}, std::nullopt}};
  REQUIRE_FALSE(StepWatch{1s}.look(silent, false, t0 + 1000s).hung);
  const std::vector<StepSample> stuck{at(0, 1, t0)};
  REQUIRE_FALSE(StepWatch{Duration{0}}.look(stuck, false, t0 + 1000s).hung);
  const std::vector<StepSample> of_the_future{at(0, 1, t0 + 5000s)};
  REQUIRE_FALSE(StepWatch{1s}.look(of_the_future, false, t0).hung);
}

TEST_CASE("the slowest worker is named once its pace is known", "[unit][step_watch]") {
  StepWatch watch{Duration{0}};
  std::string told;
  for (std::uint64_t beat = 1; beat <= 10; ++beat) {
    const std::vector<StepSample> samples{pace(0, beat, 120ms, 40ms), pace(1, beat, 120ms, 0ms),
                                          pace(2, beat, 120ms, 45ms)};
    const auto findings = watch.look(samples, false, t0);
    REQUIRE((beat == 5) == findings.slow.has_value());
    if (findings.slow) told += to_text(*findings.slow)->text;
  }
  REQUIRE(told == "rank 1 is the slowest: 120 ms of own work in a step, the others 80 ms (the rest they wait)");
}

TEST_CASE("even workers, a single one, and nonsense have no slowest", "[unit][step_watch]") {
  StepWatch watch{Duration{0}};
  for (std::uint64_t beat = 1; beat <= 10; ++beat) {
    REQUIRE_FALSE(
        watch.look(std::vector{pace(0, beat, 120ms, 10ms), pace(1, beat, 120ms, 0ms)}, false, t0).slow.has_value());
    REQUIRE_FALSE(StepWatch{Duration{0}}.look(std::vector{pace(0, beat, 120ms, 10ms)}, false, t0).slow.has_value());
  }
  StepWatch fooled{Duration{0}};
  for (std::uint64_t beat = 1; beat <= 10; ++beat) {
    REQUIRE_FALSE(
        fooled.look(std::vector{pace(0, beat, -5s, 10ms), pace(1, beat, 1s, 5s)}, false, t0).slow.has_value());
  }
}

namespace {

/// Looks at `samples` every interval from `from` on, as the launcher does, the last one at `until`.
std::optional<HungWorkers> looked(StepWatch& watch, const std::vector<StepSample>& samples, bool standing,
                                  TimePoint from, TimePoint until) {
  for (TimePoint now = from; now < until; now += watch.interval()) {
    if (auto hung = watch.look(samples, standing, now).hung) return hung;
  }
  return watch.look(samples, standing, until).hung;
}

}  // namespace

TEST_CASE("time in which all stood still is not counted", "[unit][step_watch]") {
  StepWatch watch{30s};
  const std::vector<StepSample> samples{at(0, 12, t0, t0 + 1s), at(1, 12, t0)};
  REQUIRE_FALSE(looked(watch, samples, false, t0, t0 + 20s));
  SECTION("Ctrl-Z, or a drain") {
    REQUIRE_FALSE(looked(watch, samples, true, t0 + 21s, t0 + 500s));
    // 20 s before it, 10 s after it, and a look's length of doubt.
    REQUIRE_FALSE(looked(watch, samples, false, t0 + 501s, t0 + 510s));
    REQUIRE(looked(watch, samples, false, t0 + 511s, t0 + 513s));
  }
  SECTION("docker pause, a suspended machine: we did not look either") {
    REQUIRE_FALSE(looked(watch, samples, false, t0 + 500s, t0 + 510s));
    REQUIRE(looked(watch, samples, false, t0 + 511s, t0 + 513s));
  }
  SECTION("a look that is a little late leaves nothing out") {
    TimePoint now = t0 + 20s;
    for (; now <= t0 + 30s; now += 2s) REQUIRE_FALSE(watch.look(samples, false, now).hung);
    REQUIRE(watch.look(samples, false, now).hung);
  }
}

TEST_CASE("beyond the pauses that are remembered somebody is found later, nobody wrongly", "[unit][step_watch]") {
  StepWatch watch{300s};
  const std::vector<StepSample> samples{at(0, 12, t0)};
  // A minute in which nobody looks, then a second that counts, again and again.
  const std::size_t rounds = pauses_max + static_cast<std::size_t>(GENERATE(0, 1, 64));
  TimePoint now = t0;
  REQUIRE_FALSE(watch.look(samples, false, now).hung);
  for (std::size_t i = 0; i < rounds; ++i) {
    REQUIRE_FALSE(watch.look(samples, false, now += 60s).hung);
    if (i >= 40) continue;  // from here on without any that counts
    REQUIRE_FALSE(watch.look(samples, false, now += 1s).hung);
  }
  REQUIRE(looked(watch, samples, false, now + 1s, now + 301s));
}

TEST_CASE("who saves its state does not hang, nor who waits for it", "[unit][step_watch]") {
  StepWatch watch{30s};
  std::vector<StepSample> samples{at(0, 12, t0, t0 + 1s), at(1, 12, t0)};
  samples[1].progress->saving_since_ns = ns(t0);
  REQUIRE_FALSE(looked(watch, samples, false, t0, t0 + 1000s));
  samples[1].progress->saving_since_ns = 0;
  // The step after it takes its time, too: what the save took is no part of that.
  REQUIRE_FALSE(looked(watch, samples, false, t0 + 1001s, t0 + 1029s));
  REQUIRE(watch.look(samples, false, t0 + 1031s).hung->workers == std::vector{LocalRank{1}});
}
