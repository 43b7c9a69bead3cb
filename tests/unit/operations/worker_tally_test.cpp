#include "launcher/core/ops/worker_tally.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

namespace {

EventBody started(int local_rank, int rank, std::int64_t pid) {
  event::WorkerStarted started;
  started.worker = {Rank{rank}, LocalRank{local_rank}, pid};
  return started;
}

EventBody exited(int local_rank, std::int64_t pid, WorkerEnd end, std::optional<WorkerSteps> steps = {}) {
  event::WorkerExited exited;
  exited.worker = {Rank{0}, LocalRank{local_rank}, pid};
  exited.end = end;
  exited.steps = steps;
  return exited;
}

std::vector<StepSample> beats(int local_rank, std::uint64_t count, std::int64_t waited_ns) {
  StepSample sample;
  sample.local_rank = LocalRank{local_rank};
  sample.progress = WorkerProgress{.beats = count, .step = static_cast<std::int64_t>(count) + 100};
  sample.progress->total_waited_ns = waited_ns;
  return {sample};
}

}  // namespace

TEST_CASE("who has not been started yet is not told of", "[unit][operations]") {
  WorkerTally tally{2};
  tally.record(started(1, 5, 11));
  const auto workers = tally.workers();
  REQUIRE(workers.size() == 1);
  CHECK(workers[0].rank == Rank{5});
  CHECK(workers[0].local_rank == LocalRank{1});
  CHECK(workers[0].up);
  CHECK_FALSE(workers[0].step);
  REQUIRE(tally.living().size() == 1);
  CHECK(tally.living()[0].pid == 11);
}

TEST_CASE("what grows counts all processes that have had a worker's place", "[unit][operations]") {
  WorkerTally tally{1};
  tally.record(started(0, 0, 11));
  tally.look(beats(0, 3, 2'000'000'000));
  tally.used({LocalRank{0}, 11}, 5.0, 1000);
  CHECK(tally.workers()[0].steps == 3);
  CHECK(tally.workers()[0].step == 103);
  CHECK(tally.workers()[0].resident_bytes == 1000);

  tally.record(exited(0, 11, WorkerEnd::failed, WorkerSteps{.beats = 4, .last_step = 104}));
  CHECK_FALSE(tally.workers()[0].up);
  CHECK(tally.workers()[0].steps == 4);
  CHECK(tally.workers()[0].resident_bytes == 0);
  CHECK(tally.living().empty());

  tally.record(started(0, 0, 12));
  tally.used({LocalRank{0}, 11}, 100.0, 5);  // it is gone
  tally.look(beats(0, 2, 1'000'000'000));
  tally.used({LocalRank{0}, 12}, 1.5, 2000);
  const WorkerNumbers worker = tally.workers()[0];
  CHECK(worker.starts == 2);
  CHECK(worker.steps == 6);
  CHECK(worker.waited_s == Approx(3.0));
  CHECK(worker.cpu_s == Approx(6.5));
  CHECK(worker.resident_bytes == 2000);
  CHECK(tally.exits().at("failed") == 1);
}

TEST_CASE("a worker of a place that there is not is nobody's", "[unit][operations]") {
  WorkerTally tally{1};
  tally.record(started(7, 7, 11));
  tally.look(beats(-1, 2, 0));
  CHECK(tally.workers().empty());
}
