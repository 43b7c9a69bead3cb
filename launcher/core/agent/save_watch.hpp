#pragma once

#include <optional>
#include <span>
#include <string>

#include "rendezvous/base/types.hpp"
#include "rendezvous/base/worker_page.hpp"
#include "rendezvous/core/diagnosis/progress_clock.hpp"

namespace torchup {

/// A living local worker, and what its page says.
struct StepSample {
  Rank rank{0};
  LocalRank local_rank{0};
  std::optional<WorkerProgress> progress;  ///< nothing: it does not use the page, or has not ended a step
  WorkerSigns signs = {};                  ///< of its progress, also of one that ends no steps
  bool opened = false;                     ///< it uses the page, and may be about to end its first step
};

/// What a page tells of progress. `hook`: what a Python worker's hook has written there, if it has claimed the page, or
/// the runtime of a C++ worker.
[[nodiscard]] WorkerSigns signs_of(LocalRank local_rank, const std::optional<WorkerProgress>& progress,
                                   const std::optional<HookPage>& hook);

/// How often workers are looked at who must not be silent for longer than `timeout` (0: no such limit): a few times
/// within it, and in any case between once in look_interval_min and once in look_interval_max. A shorter timeout is
/// found to be over by the next look.
inline constexpr Duration look_interval_min = std::chrono::milliseconds{100};
inline constexpr Duration look_interval_max = std::chrono::seconds{1};
[[nodiscard]] Duration look_interval(Duration timeout);

/// Whether a worker saves its state now: the others wait for it, and nobody hangs.
[[nodiscard]] bool is_saving(std::span<const StepSample> samples);

/// Tells of saves that take long, during which nobody is taken for hung. Pure; one for each attempt.
class SaveWatch {
 public:
  /// `limit`: nothing is told of shorter ones; 0: of none.
  explicit SaveWatch(Duration limit) : limit_{limit} {}

  /// When a save has taken the limit, and then whenever it has taken twice as long. `now` is the monotonic clock, which
  /// the pages use too.
  std::optional<std::string> look(std::span<const StepSample> samples, TimePoint now);

 private:
  Duration limit_;
  Duration told_{0};  ///< how long the save had taken that was told last; 0: none since somebody saves
};

/// "step 120 ended 31.2 s ago": for reports.
[[nodiscard]] std::string progress_text(const WorkerProgress& progress, TimePoint now);

}  // namespace torchup
