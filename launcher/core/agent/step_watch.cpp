#include "launcher/core/agent/step_watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

/// Looks with news before a worker's pace means something, and how much a look weighs then.
constexpr int looks_needed = 5;
constexpr double newest_weight = 0.2;
/// Slow is who works this much longer than the median of the others, and by this share of a step.
constexpr double slow_factor = 1.3;
constexpr double slow_share = 0.1;
constexpr int looks_in_timeout = 4;
/// A look that comes so many intervals after the one before was kept from us, nobody knows since when: all of that time
/// is left out.
constexpr int late_intervals = 2;

Duration since(std::int64_t time_ns, TimePoint now) {
  // The worker's word: a time of the future counts as now.
  const auto passed = now.time_since_epoch() - std::chrono::nanoseconds{time_ns};
  return std::max(Duration{0}, std::chrono::duration_cast<Duration>(passed));
}

std::string ranks_text(const std::vector<Rank>& ranks) {
  std::vector<int> numbers;
  for (const Rank rank : ranks) numbers.push_back(rank.value());
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(numbers, ", "));
}

}  // namespace

std::string progress_text(const WorkerProgress& progress, TimePoint now) {
  std::string text = fmt::format("step {} ended {} ago", progress.step, seconds_text(since(progress.ended_ns, now)));
  if (progress.waiting_since_ns != 0) {
    text += fmt::format(", waiting for other ranks for {}", seconds_text(since(progress.waiting_since_ns, now)));
  }
  if (progress.saving_since_ns != 0) {
    text += fmt::format(", saving its state for {}", seconds_text(since(progress.saving_since_ns, now)));
  }
  return text;
}

Duration look_interval(Duration timeout) {
  if (timeout <= Duration{0}) return look_interval_max;
  return std::clamp(timeout / looks_in_timeout, look_interval_min, look_interval_max);
}

StepWatch::Findings StepWatch::look(std::span<const StepSample> samples, bool standing, TimePoint now) {
  // Who saves is busy, and the others wait for it: time without steps, for which nobody is to blame afterwards either.
  standing = standing || std::ranges::any_of(samples, [](const StepSample& sample) {
               return sample.progress && sample.progress->saving_since_ns != 0;
             });
  const bool late = last_look_ && now - *last_look_ > late_intervals * interval();
  if (last_look_ && (standing || late)) leave_out(*last_look_, now);
  last_look_ = now;
  Findings findings;
  findings.warning = find_saving(samples, now);
  if (!hung_told_ && !standing && heartbeat_timeout_ > Duration{0}) {
    find_hung(samples, now, findings);
    hung_told_ = findings.hung || findings.warning;
  }
  measure(samples);
  findings.slow = find_slow(samples);
  return findings;
}

void StepWatch::leave_out(TimePoint begin, TimePoint end) {
  if (!pauses_.empty() && begin <= pauses_.back().end) {
    pauses_.back().end = end;
    return;
  }
  pauses_.push_back({begin, end});
  if (pauses_.size() <= pauses_max) return;
  // The time between the two oldest is lost with it: somebody is found later, nobody wrongly.
  pauses_[1].begin = pauses_.front().begin;
  pauses_.pop_front();
}

/// How long ago that was, without the pauses.
Duration StepWatch::counted_since(std::int64_t time_ns, TimePoint now) const {
  Duration counted = since(time_ns, now);
  const TimePoint begin = now - counted;
  for (const Pause& pause : pauses_) {
    if (pause.end > begin) counted -= pause.end - std::max(pause.begin, begin);
  }
  return counted;
}

/// A save that lasts is told when it has taken the timeout, and then whenever it has taken twice as long.
std::optional<std::string> StepWatch::find_saving(std::span<const StepSample> samples, TimePoint now) {
  std::vector<Rank> saving;
  Duration longest{0};
  for (const StepSample& sample : samples) {
    if (!sample.progress || sample.progress->saving_since_ns == 0) continue;
    saving.push_back(sample.rank);
    longest = std::max(longest, since(sample.progress->saving_since_ns, now));
  }
  if (saving.empty()) saving_told_ = Duration{0};
  if (heartbeat_timeout_ <= Duration{0} || longest <= std::max(heartbeat_timeout_, 2 * saving_told_))
    return std::nullopt;
  saving_told_ = longest;
  return fmt::format("{} {} the state for {}; until that is done nobody is taken for hung (--heartbeat-timeout {})",
                     ranks_text(saving), saving.size() == 1 ? "saves" : "save", seconds_text(longest),
                     seconds_text(heartbeat_timeout_));
}

void StepWatch::find_hung(std::span<const StepSample> samples, TimePoint now, Findings& findings) const {
  HungWorkers busy, all;  // silent without waiting for anybody; silent at all
  std::vector<Rank> busy_ranks, all_ranks, waiting_ranks;
  Duration longest{0};
  std::int64_t last_step = 0;
  for (const StepSample& sample : samples) {
    if (!sample.progress) continue;
    const bool waits = sample.progress->waiting_since_ns != 0;
    if (waits) waiting_ranks.push_back(sample.rank);
    const Duration silent = counted_since(sample.progress->ended_ns, now);
    if (silent <= heartbeat_timeout_) continue;
    if (silent > longest) {
      longest = silent;
      last_step = sample.progress->step;
    }
    all.workers.push_back(sample.local_rank);
    all_ranks.push_back(sample.rank);
    if (waits) continue;
    busy.workers.push_back(sample.local_rank);
    busy_ranks.push_back(sample.rank);
  }
  const std::string after = fmt::format(" ended no step for {} (--heartbeat-timeout {}), the last one was step {}",
                                        seconds_text(longest), seconds_text(heartbeat_timeout_), last_step);
  if (!busy.workers.empty()) {
    busy.reason = ranks_text(busy_ranks) + after;
    if (!waiting_ranks.empty())
      busy.reason +=
          "; " + ranks_text(waiting_ranks) + (waiting_ranks.size() == 1 ? " waits" : " wait") + " for others";
    findings.hung = std::move(busy);
  } else if (longest > 2 * heartbeat_timeout_ && other_nodes_) {
    findings.warning =
        ranks_text(all_ranks) + after + "; all of them wait for others, so they are not aborted: see the other nodes";
  } else if (longest > 2 * heartbeat_timeout_) {
    all.reason = ranks_text(all_ranks) + after + "; all of them wait for others";
    findings.hung = std::move(all);
  }
}

void StepWatch::measure(std::span<const StepSample> samples) {
  for (const StepSample& sample : samples) {
    if (!sample.progress) continue;
    const WorkerProgress& progress = *sample.progress;
    Pace& pace = paces_[sample.local_rank.value()];
    if (progress.beats == pace.beats) continue;
    pace.beats = progress.beats;
    if (progress.took_ns <= 0 || progress.waited_ns < 0 || progress.waited_ns > progress.took_ns) continue;
    const auto work = static_cast<double>(progress.took_ns - progress.waited_ns);
    const auto step = static_cast<double>(progress.took_ns);
    const double weight = pace.looks == 0 ? 1 : newest_weight;
    pace.work_ns += weight * (work - pace.work_ns);
    pace.step_ns += weight * (step - pace.step_ns);
    ++pace.looks;
  }
}

std::optional<event::SlowRank> StepWatch::find_slow(std::span<const StepSample> samples) {
  const StepSample* slowest = nullptr;
  std::vector<double> others;
  for (const StepSample& sample : samples) {
    const auto pace = paces_.find(sample.local_rank.value());
    if (pace == paces_.end() || pace->second.looks < looks_needed) return std::nullopt;
    if (slowest == nullptr || pace->second.work_ns > paces_.at(slowest->local_rank.value()).work_ns) slowest = &sample;
    others.push_back(pace->second.work_ns);
  }
  if (others.size() < 2) return std::nullopt;
  const Pace& pace = paces_.at(slowest->local_rank.value());
  others.erase(std::find(others.begin(), others.end(), pace.work_ns));
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  if (pace.work_ns < slow_factor * *middle || pace.work_ns - *middle < slow_share * pace.step_ns) return std::nullopt;
  if (slow_told_ == slowest->rank) return std::nullopt;
  slow_told_ = slowest->rank;
  return event::SlowRank{slowest->rank, pace.work_ns / 1e6, *middle / 1e6};
}

}  // namespace torchup
