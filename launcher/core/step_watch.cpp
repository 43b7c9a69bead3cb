#include "launcher/core/step_watch.hpp"

#include <algorithm>
#include <chrono>

#include "launcher/core/text.hpp"

namespace torchup {
namespace {

/// Looks with news before a worker's pace means something, and how much a look weighs then.
constexpr int looks_needed = 5;
constexpr double newest_weight = 0.2;
/// Slow is who works this much longer than the median of the others, and by this share of a step.
constexpr double slow_factor = 1.3;
constexpr double slow_share = 0.1;

Duration since(std::int64_t time_ns, TimePoint now) {
  // The worker's word: a time of the future counts as now.
  const auto passed = now.time_since_epoch() - std::chrono::nanoseconds{time_ns};
  return std::max(Duration{0}, std::chrono::duration_cast<Duration>(passed));
}

std::string milliseconds_text(double ns) {
  const auto tenths = static_cast<std::int64_t>(ns / 1e5);
  return tenths >= 100 ? std::to_string(tenths / 10) + " ms"
                       : std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " ms";
}

std::string ranks_text(const std::vector<Rank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i].value());
  return text;
}

}  // namespace

std::string progress_text(const WorkerProgress& progress, TimePoint now) {
  return "step " + std::to_string(progress.step) + " ended " + seconds_text(since(progress.ended_ns, now)) + " ago" +
         (progress.waiting_since_ns != 0
              ? ", waiting for other ranks for " + seconds_text(since(progress.waiting_since_ns, now))
              : "");
}

StepWatch::Findings StepWatch::look(std::span<const StepSample> samples, TimePoint now) {
  Findings findings;
  if (!hung_told_ && heartbeat_timeout_ > Duration{0}) {
    findings.hung = find_hung(samples, now);
    hung_told_ = findings.hung.has_value();
  }
  measure(samples);
  findings.slow = find_slow(samples);
  return findings;
}

std::optional<HungWorkers> StepWatch::find_hung(std::span<const StepSample> samples, TimePoint now) const {
  HungWorkers busy, all;  // silent without waiting for anybody; silent at all
  std::vector<Rank> busy_ranks, all_ranks, waiting_ranks;
  Duration longest{0};
  std::int64_t last_step = 0;
  for (const StepSample& sample : samples) {
    if (!sample.progress) continue;
    const bool waits = sample.progress->waiting_since_ns != 0;
    if (waits) waiting_ranks.push_back(sample.rank);
    const Duration silent = since(sample.progress->ended_ns, now);
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
  const std::string after = " ended no step for " + seconds_text(longest) + " (--heartbeat-timeout " +
                            seconds_text(heartbeat_timeout_) + "), the last one was step " + std::to_string(last_step);
  if (!busy.workers.empty()) {
    busy.reason = ranks_text(busy_ranks) + after;
    if (!waiting_ranks.empty())
      busy.reason +=
          "; " + ranks_text(waiting_ranks) + (waiting_ranks.size() == 1 ? " waits" : " wait") + " for others";
    return busy;
  }
  if (longest > 2 * heartbeat_timeout_) {
    all.reason = ranks_text(all_ranks) + after + "; all of them wait for others";
    return all;
  }
  return std::nullopt;
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

std::string StepWatch::find_slow(std::span<const StepSample> samples) {
  const StepSample* slowest = nullptr;
  std::vector<double> others;
  for (const StepSample& sample : samples) {
    const auto pace = paces_.find(sample.local_rank.value());
    if (pace == paces_.end() || pace->second.looks < looks_needed) return "";
    if (slowest == nullptr || pace->second.work_ns > paces_.at(slowest->local_rank.value()).work_ns) slowest = &sample;
    others.push_back(pace->second.work_ns);
  }
  if (others.size() < 2) return "";
  const Pace& pace = paces_.at(slowest->local_rank.value());
  others.erase(std::find(others.begin(), others.end(), pace.work_ns));
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  if (pace.work_ns < slow_factor * *middle || pace.work_ns - *middle < slow_share * pace.step_ns) return "";
  if (slow_told_ == slowest->rank) return "";
  slow_told_ = slowest->rank;
  return "rank " + std::to_string(slowest->rank.value()) + " is the slowest: " + milliseconds_text(pace.work_ns) +
         " of own work in a step, the others " + milliseconds_text(*middle) + " (the rest they wait)";
}

}  // namespace torchup
