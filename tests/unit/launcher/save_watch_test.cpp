#include "launcher/core/agent/save_watch.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

constexpr TimePoint t0{100s};

std::int64_t ns(TimePoint time) { return std::chrono::nanoseconds{time.time_since_epoch()}.count(); }

StepSample at(int rank, std::optional<TimePoint> saving_since = std::nullopt) {
  WorkerProgress progress{.beats = 3, .step = 12, .ended_ns = ns(t0)};
  if (saving_since) progress.saving_since_ns = ns(*saving_since);
  return {Rank{rank + 4}, LocalRank{rank}, progress};
}

}  // namespace

TEST_CASE("a save that takes long is told when it has taken the limit, and twice as long", "[unit][save_watch]") {
  SaveWatch watch{30s};
  std::vector<StepSample> samples{at(0), at(1, t0)};
  REQUIRE_FALSE(watch.look(samples, t0 + 30s));
  REQUIRE(watch.look(samples, t0 + 31s) ==
          "rank 5 saves the state for 31.0 s; until that is done nobody is taken for hung");
  REQUIRE_FALSE(watch.look(samples, t0 + 62s));
  REQUIRE(watch.look(samples, t0 + 63s));
  samples[1] = at(1);
  REQUIRE_FALSE(watch.look(samples, t0 + 64s));
  samples = {at(0, t0 + 64s), at(1, t0 + 70s)};  // another save
  REQUIRE(watch.look(samples, t0 + 95s) ==
          "ranks 4-5 save the state for 31.0 s; until that is done nobody is taken for hung");
  SaveWatch off{Duration{0}};
  REQUIRE_FALSE(off.look(samples, t0 + 900s));
}

TEST_CASE("who saves is known by its page", "[unit][save_watch]") {
  REQUIRE(is_saving(std::vector{at(0), at(1, t0)}));
  REQUIRE_FALSE(is_saving(std::vector{at(0), at(1)}));
  REQUIRE_FALSE(is_saving(std::vector<StepSample>{{Rank{0}, LocalRank{0}, std::nullopt}}));
}

TEST_CASE("progress can be expected of who ends steps, or has begun a process group", "[unit][save_watch]") {
  const LocalRank local_rank{3};
  REQUIRE(signs_of(local_rank, std::nullopt, std::nullopt) == WorkerSigns{.local_rank = local_rank});
  HookPage hook;
  REQUIRE_FALSE(signs_of(local_rank, std::nullopt, hook).watched);
  SECTION("by its steps") {
    const WorkerProgress progress{.beats = 3, .ended_ns = 17};
    REQUIRE(signs_of(local_rank, progress, std::nullopt) ==
            WorkerSigns{.local_rank = local_rank, .watched = true, .beats = 3, .beat_ns = 17});
  }
  SECTION("by the helper, which begins with the first group") {
    hook.helper = 4711;
    REQUIRE(signs_of(local_rank, std::nullopt, hook).watched);
  }
  SECTION("by its collectives") {
    hook.collectives = 5;
    hook.collectives_at_ns = 18;
    hook.ending_at_ns = 19;
    REQUIRE(
        signs_of(local_rank, std::nullopt, hook) ==
        WorkerSigns{.local_rank = local_rank, .watched = true, .collectives = 5, .collectives_ns = 18, .ending = true});
  }
}

TEST_CASE("where a worker is, for reports", "[unit][save_watch]") {
  WorkerProgress progress{.step = 12, .ended_ns = ns(t0)};
  REQUIRE(progress_text(progress, t0 + 31s) == "step 12 ended 31.0 s ago");
  progress.waiting_since_ns = ns(t0 + 1s);
  REQUIRE(progress_text(progress, t0 + 31s) == "step 12 ended 31.0 s ago, waiting for other ranks for 30.0 s");
  progress.waiting_since_ns = 0;
  progress.saving_since_ns = ns(t0 + 500s);  // of the future: now
  REQUIRE(progress_text(progress, t0 + 31s) == "step 12 ended 31.0 s ago, saving its state for 0.0 s");
}
