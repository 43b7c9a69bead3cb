#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "launcher/core/record/launch_event.hpp"

namespace torchup {

/// One look at a living worker.
struct StateSample {
  WorkerId worker;
  char state = 'S';  ///< as the kernel names it in /proc/<pid>/stat; '?' when it cannot be read
};

/// Tells from repeated looks at the workers which of them are stopped, or sleep where nothing can wake them. Pure; says
/// each thing once.
///
/// Source of the rule on uninterruptible sleep and of its words: torchrun's contract,
/// TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT. There such a job ends with 0, which is a slip; ours with 1.
class StateWatch {
 public:
  /// `stuck_timeout`: longest uninterruptible sleep; 0: not watched.
  StateWatch(std::string role, Duration stuck_timeout) : role_{std::move(role)}, stuck_timeout_{stuck_timeout} {}

  /// `samples` are those of all living workers. Gives worker_stopped and worker_uninterruptible.
  [[nodiscard]] std::vector<EventBody> look(std::span<const StateSample> samples, TimePoint now);

 private:
  struct Watched {
    std::int64_t pid = 0;
    int stopped_looks = 0;
    std::optional<TimePoint> stuck_since;
    bool stuck_said = false;
  };
  Watched& watched(const StateSample& sample);

  std::string role_;
  Duration stuck_timeout_;
  std::vector<Watched> workers_;  ///< index: local rank
};

}  // namespace torchup
