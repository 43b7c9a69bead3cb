// A node's report: a letter for each rank, and its steps.
#include "launcher/core/agent/node_sight.hpp"

#include <catch2/catch.hpp>

namespace torchup {
namespace {

using namespace std::chrono_literals;

WorkerId worker(int local_rank) { return {Rank{local_rank}, LocalRank{local_rank}, 100 + local_rank}; }

WorkerProgress progress(std::uint64_t beats, TimePoint ended) {
  return {.beats = beats,
          .step = 1000 + static_cast<std::int64_t>(beats),
          .ended_ns = std::chrono::nanoseconds{ended.time_since_epoch()}.count()};
}

/// That has happened to a worker.
template <class Event>
Event of(int local_rank) {
  Event event;
  event.worker = worker(local_rank);
  return event;
}
StepSample sample(int local_rank, std::optional<WorkerProgress> page, bool opened) {
  StepSample made;
  made.local_rank = LocalRank{local_rank};
  made.progress = page;
  made.opened = opened;
  return made;
}

/// Four workers, of which the last one is never started.
struct Node {
  Node() { begin(); }
  void begin() {
    sight.record(event::RoundCompleted{});
    for (const int local_rank : {0, 1, 2}) sight.record(of<event::WorkerStarted>(local_rank));
  }
  void look(const std::vector<std::optional<WorkerProgress>>& pages) {
    std::vector<StepSample> samples;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      samples.push_back(sample(static_cast<int>(i), pages[i], pages[i].has_value()));
    }
    sight.look(samples, now);
  }
  void exits(int local_rank, WorkerEnd end) {
    auto exited = of<event::WorkerExited>(local_rank);
    exited.end = end;
    sight.record(exited);
  }
  [[nodiscard]] std::string letters() const { return sight.report(now).ranks; }
  [[nodiscard]] StepReport steps() const { return sight.report(now).steps.value(); }

  NodeSight sight{4};
  TimePoint now{100s};
};

}  // namespace

TEST_CASE("each local rank has its letter", "[unit][node_sight]") {
  Node node;
  REQUIRE(node.letters() == "rrr-");
  SECTION("before the first round nothing has started") { REQUIRE(NodeSight{2}.report({}).ranks == "--"); }
  SECTION("one that has opened its page has not ended a step") {
    const StepSample opened = sample(1, {}, true);
    node.sight.look({&opened, 1}, node.now);
    REQUIRE(node.letters() == "rsr-");
    node.look({{}, progress(1, node.now)});
    REQUIRE(node.letters() == "rrr-");
  }
  SECTION("who waits for others for long") {
    WorkerProgress waits = progress(1, node.now);
    waits.waiting_since_ns = std::chrono::nanoseconds{node.now.time_since_epoch()}.count();
    node.look({waits, progress(1, node.now)});
    node.now += 1s;
    REQUIRE(node.letters() == "rrr-");
    node.now += 1ms;
    REQUIRE(node.letters() == "wrr-");
  }
  SECTION("who hangs, until it gets on") {
    node.look({{}, progress(1, node.now)});
    node.sight.record(of<event::WorkerHung>(1));
    REQUIRE(node.letters() == "rhr-");
    SECTION("by a step") {
      node.look({{}, progress(1, node.now)});
      REQUIRE(node.letters() == "rhr-");
      node.look({{}, progress(2, node.now)});
    }
    SECTION("or because the hang is over") { node.sight.record(event::HangOver{}); }
    REQUIRE(node.letters() == "rrr-");
  }
  SECTION("how they ended") {
    node.exits(0, WorkerEnd::succeeded);
    node.exits(1, WorkerEnd::failed);
    node.exits(2, WorkerEnd::terminated);
    node.sight.record(of<event::SpawnFailed>(3));
    REQUIRE(node.letters() == "dxtx");
    SECTION("until the next round") {
      node.begin();
      REQUIRE(node.letters() == "rrr-");
    }
  }
  SECTION("one that nothing ends is not known of") {
    node.sight.record(of<event::WorkerAbandoned>(0));
    REQUIRE(node.letters() == "?rr-");
  }
  SECTION("a local rank that is none changes nothing") {
    for (const int local_rank : {-1, 4}) {
      node.exits(local_rank, WorkerEnd::failed);
      const StepSample other = sample(local_rank, progress(1, node.now), true);
      node.sight.look({&other, 1}, node.now);
    }
    REQUIRE(node.letters() == "rrr-");
    REQUIRE_FALSE(node.sight.report(node.now).steps);
  }
}

TEST_CASE("steps are those of the workers that report them", "[unit][node_sight]") {
  Node node;
  REQUIRE_FALSE(node.sight.report(node.now).steps);
  node.look({progress(5, node.now - 2s), progress(3, node.now - 1s)});
  REQUIRE(node.steps() == StepReport{.least = 1003, .most = 1005, .milli_per_second = 0, .age = 1s});
  REQUIRE(node.sight.report(node.now).beats == 8);
  SECTION("the rate is one worker's, over the last ten seconds") {
    std::uint64_t beats = 5;
    const auto pass = [&](int seconds, std::uint64_t a_second) {
      for (int i = 0; i < seconds; ++i) {
        node.now += 1s;
        beats += a_second;
        node.look({progress(beats, node.now), progress(beats - 2, node.now)});
      }
    };
    pass(2, 4);
    REQUIRE(node.steps().milli_per_second == 4000);
    pass(30, 4);
    REQUIRE(node.steps().milli_per_second == 4000);
    pass(11, 0);
    REQUIRE(node.steps().milli_per_second == 0);
    REQUIRE(node.sight.report(node.now).beats == 8 + 2 * 32 * 4);
  }
  SECTION("a time of the future is now") {
    node.look({progress(6, node.now + 1h)});
    REQUIRE(node.steps().age == 0s);
  }
  SECTION("a worker that starts again counts from its own beginning") {
    node.begin();
    REQUIRE_FALSE(node.sight.report(node.now).steps);
    node.now += 1s;
    node.look({progress(2, node.now)});
    REQUIRE(node.sight.report(node.now).beats == 10);
  }
  SECTION("one that is kept goes on, and has ended no step of this round yet") {
    node.sight.record(event::RoundCompleted{});
    node.sight.record(of<event::WorkerKept>(0));
    node.look({progress(5, node.now - 2s)});
    REQUIRE(node.letters() == "s---");
    node.look({progress(6, node.now)});
    REQUIRE(node.letters() == "r---");
    REQUIRE(node.sight.report(node.now).beats == 9);
  }
}

}  // namespace torchup
