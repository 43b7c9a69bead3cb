#include "rendezvous/core/diagnosis/progress_clock.hpp"

#include <algorithm>
#include <bit>
#include <chrono>

#include "rendezvous/core/link/messages.hpp"

namespace torchup {
namespace {

/// Eight classes to each doubling: three bits of the number behind its first one.
constexpr int class_bits = 3;

std::size_t class_of(std::uint64_t microseconds) {
  const auto width = static_cast<int>(std::bit_width(microseconds));
  if (width <= class_bits) return static_cast<std::size_t>(microseconds);
  const int shift = width - class_bits - 1;
  return (static_cast<std::size_t>(shift) << class_bits) + static_cast<std::size_t>(microseconds >> shift);
}

/// One more than the largest number of the class.
std::uint64_t end_of(std::size_t index) {
  constexpr std::size_t per_doubling = std::size_t{1} << class_bits;
  if (index < per_doubling) return index + 1;
  const std::size_t shift = index / per_doubling - 1;
  return std::uint64_t{index % per_doubling + per_doubling + 1} << shift;
}

/// A time of the future, or of before the look before, is not believed further than that.
TimePoint moment(std::int64_t time_ns, TimePoint from, TimePoint until) {
  const TimePoint told{std::chrono::duration_cast<Duration>(std::chrono::nanoseconds{time_ns})};
  return std::clamp(told, from, until);
}

}  // namespace

void GapCounts::add(Duration gap) {
  const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(std::max(gap, Duration{0})).count();
  ++counts_[std::min(class_of(static_cast<std::uint64_t>(microseconds)), classes - 1)];
  ++all_;
}

Duration GapCounts::median() const {
  std::uint64_t below = 0;
  for (std::size_t index = 0; index < classes; ++index) {
    below += counts_[index];
    if (all_ != 0 && 2 * below >= all_) return std::chrono::microseconds{static_cast<std::int64_t>(end_of(index))};
  }
  return Duration{0};
}

std::optional<TimePoint> ProgressClock::newest_progress(std::span<const WorkerSigns> workers, TimePoint now) {
  std::optional<TimePoint> newest;
  for (const WorkerSigns& worker : workers) {
    if (worker.local_rank.value() < 0 || worker.local_rank.value() >= local_workers_max) continue;
    const auto placed = counts_.try_emplace(worker.local_rank.value());
    Counts& counts = placed.first->second;
    const bool is_new = placed.second;
    const auto since_last_look = [&](std::int64_t time_ns) {
      // What a kept worker counted in an earlier attempt is no progress of this one.
      return !is_new || !first_look_ || TimePoint{std::chrono::nanoseconds{time_ns}} > last_look_;
    };
    const auto take = [&](std::uint64_t& known, std::uint64_t told, std::int64_t time_ns) {
      if (told == known) return;
      known = told;
      if (!since_last_look(time_ns)) return;
      const TimePoint when = moment(time_ns, last_look_, now);
      newest = std::max(newest.value_or(when), when);
    };
    take(counts.beats, worker.beats, worker.beat_ns);
    take(counts.collectives, worker.collectives, worker.collectives_ns);
  }
  return newest;
}

void ProgressClock::look(std::span<const WorkerSigns> workers, bool standing, TimePoint now) {
  const bool late = now - last_look_ > progress_late_intervals * interval_;
  const auto newest = newest_progress(workers, now);
  const Duration passed = standing || late ? Duration{0} : now - last_look_;
  if (newest) {
    // With what does not count, the time before the progress and behind it cannot be told apart: none of it counts.
    const Duration behind = std::min(passed, now - *newest);
    const Duration gap = report_.silence + (passed - behind);
    if (report_.progressed) {
      gaps_.add(gap);
      report_.median_gap = gaps_.median();
      report_.longest_gap = std::max(report_.longest_gap, gap);
    }
    report_.progressed = true;
    report_.silence = behind;
  } else {
    report_.silence += passed;
  }
  report_.watched = report_.watched || report_.progressed || std::ranges::any_of(workers, &WorkerSigns::watched);
  report_.ending = ended_ || std::ranges::any_of(workers, &WorkerSigns::ending);
  last_look_ = now;
  first_look_ = false;
}

}  // namespace torchup
