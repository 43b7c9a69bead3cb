#include "launcher/core/agent/save_watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "launcher/core/text/text.hpp"
#include "rendezvous/core/diagnosis/rank_set.hpp"

namespace torchup {
namespace {

constexpr int looks_in_timeout = 4;

Duration since(std::int64_t time_ns, TimePoint now) {
  // The worker's word: a time of the future counts as now.
  const auto passed = now.time_since_epoch() - std::chrono::nanoseconds{time_ns};
  return std::max(Duration{0}, std::chrono::duration_cast<Duration>(passed));
}

bool saves(const StepSample& sample) { return sample.progress && sample.progress->saving_since_ns != 0; }

}  // namespace

WorkerSigns signs_of(LocalRank local_rank, const std::optional<WorkerProgress>& progress,
                     const std::optional<HookPage>& hook) {
  WorkerSigns signs;
  signs.local_rank = local_rank;
  if (progress) {
    signs.watched = true;
    signs.beats = progress->beats;
    signs.beat_ns = progress->ended_ns;
  }
  if (hook) {
    // The hook's helper begins with the first process group.
    signs.watched = signs.watched || hook->helper != 0 || hook->collectives != 0;
    signs.collectives = hook->collectives;
    signs.collectives_ns = hook->collectives_at_ns;
    signs.ending = hook->ending_at_ns != 0;
  }
  return signs;
}

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

bool is_saving(std::span<const StepSample> samples) { return std::ranges::any_of(samples, saves); }

std::optional<std::string> SaveWatch::look(std::span<const StepSample> samples, TimePoint now) {
  std::vector<Rank> saving;
  Duration longest{0};
  for (const StepSample& sample : samples) {
    if (!saves(sample)) continue;
    saving.push_back(sample.rank);
    longest = std::max(longest, since(sample.progress->saving_since_ns, now));
  }
  if (saving.empty()) told_ = Duration{0};
  if (limit_ <= Duration{0} || longest <= std::max(limit_, 2 * told_)) return std::nullopt;
  told_ = longest;
  const bool one = saving.size() == 1;
  return fmt::format("{} {} {} the state for {}; until that is done nobody is taken for hung", one ? "rank" : "ranks",
                     to_text(RankSet{std::move(saving)}), one ? "saves" : "save", seconds_text(longest));
}

}  // namespace torchup
