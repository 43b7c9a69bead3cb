#include "launcher/core/agent/step_tally.hpp"

#include <algorithm>
#include <chrono>

#include "rendezvous/core/link/messages.hpp"

namespace torchup {
namespace {

constexpr std::int64_t longest_us = std::chrono::duration_cast<std::chrono::microseconds>(duration_max).count();

std::int64_t microseconds(std::int64_t ns) { return std::max(ns, std::int64_t{0}) / 1'000; }

}  // namespace

StepTally::StepTally(int local_world_size) : workers_(static_cast<std::size_t>(std::max(local_world_size, 0))) {}

void StepTally::begin(Rank first_rank, std::span<const LocalRank> kept, TimePoint now) {
  first_rank_ = first_rank;
  next_ = now + progress_told_interval;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const bool lives_on = std::ranges::find(kept, LocalRank{static_cast<int>(i)}) != kept.end();
    const Worker before = workers_[i];
    workers_[i] = {};
    if (!lives_on) continue;
    workers_[i].newest = workers_[i].beats_before = before.newest;
    workers_[i].newest_waited_ns = before.newest_waited_ns;
  }
}

void StepTally::look(LocalRank local_rank, const WorkerProgress& progress) {
  Worker& worker = workers_.at(static_cast<std::size_t>(local_rank.value()));
  if (progress.beats == worker.newest) return;
  if (progress.beats < worker.newest) worker.beats_before = 0;  // another process has the page now
  worker.newest = progress.beats;
  worker.newest_waited_ns = progress.total_waited_ns;
  const bool tells_of_first =
      worker.beats_before == 0 && progress.first_ns > 0 && progress.first_ns <= progress.ended_ns;
  const bool is_first = !worker.steps;
  if (is_first) {
    worker.steps.emplace();
    worker.waited_before_ns = tells_of_first ? 0 : progress.total_waited_ns;
  }
  WorkerSteps& steps = *worker.steps;
  if (tells_of_first || is_first) {
    steps.first_step = tells_of_first ? progress.first_step : progress.step;
    steps.first_us = microseconds(tells_of_first ? progress.first_ns : progress.ended_ns);
  }
  steps.beats = progress.beats - worker.beats_before;
  steps.last_step = progress.step;
  steps.last_us = std::max(steps.first_us, microseconds(progress.ended_ns));
  if (progress.total_waited_ns > 0) {
    steps.waited_us = microseconds(progress.total_waited_ns - worker.waited_before_ns);
  } else if (!is_first) {
    steps.waited_us = std::min(steps.waited_us + std::min(microseconds(progress.waited_ns), longest_us), longest_us);
  }
}

std::optional<WorkerSteps> StepTally::of(LocalRank local_rank) const {
  return workers_.at(static_cast<std::size_t>(local_rank.value())).steps;
}

/// Steps a second since they were told of last, or since the first one.
double StepTally::pace(const Worker& worker) {
  const WorkerSteps& steps = *worker.steps;
  const std::uint64_t before = worker.told ? worker.told->beats : 1;
  const std::int64_t lasted = steps.last_us - (worker.told ? worker.told->last_us : steps.first_us);
  if (steps.beats <= before || lasted <= 0) return 0;
  return static_cast<double>(steps.beats - before) / (static_cast<double>(lasted) / 1e6);
}

std::optional<event::Progress> StepTally::tell(TimePoint now, bool ends) {
  if (now < next_ && !ends) return std::nullopt;
  next_ = now + progress_told_interval;
  event::Progress progress;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (!worker.steps) continue;
    const WorkerSteps& steps = *worker.steps;
    const bool is_first = progress.ranks.empty();
    progress.step_min = is_first ? steps.last_step : std::min(progress.step_min, steps.last_step);
    if (is_first || steps.last_step > progress.step_max) progress.steps_per_second = pace(worker);
    progress.step_max = is_first ? steps.last_step : std::max(progress.step_max, steps.last_step);
    progress.ranks.push_back({Rank{first_rank_.value() + static_cast<int>(i)}, steps});
    worker.told = steps;
  }
  if (progress.ranks.empty()) return std::nullopt;
  return progress;
}

}  // namespace torchup
