#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace torchup {

/// Polls for a moment before sleeping, as long as that pays. Going to sleep and being woken costs more than the whole
/// round trip between two processes of one machine; but a CPU that polls is missing to whoever could use it.
///
/// It stops by itself: after misses it pauses for ever more calls, and after a sign that somebody else wanted the CPU
/// (two polls far apart) for many. A machine with one CPU never polls.
class AdaptiveSpin {
 public:
  using Clock = std::chrono::steady_clock;

  /// `limit` must be longer than it takes to wake the other side, or two that both sleep never find each other awake.
  explicit AdaptiveSpin(Clock::duration limit = std::chrono::microseconds{200});

  /// Calls `poll` until it returns true, or the moment is over. False: sleep.
  template <class Poll>
  bool run(Poll poll) {
    if (pause_ > 0) {
      --pause_;
      return false;
    }
    const auto begin = Clock::now();
    for (auto last = begin;;) {
      if (poll()) {
        misses_ = 0;
        return true;
      }
      const auto now = Clock::now();
      if (now - last > taken_away_min) {
        pause_ = pause_when_crowded;
        return false;
      }
      if (now - begin > limit_) {
        misses_ = std::min(misses_ + 1, misses_max);
        pause_ = (std::uint64_t{1} << misses_) - 1;
        return false;
      }
      last = now;
    }
  }

 private:
  static constexpr auto taken_away_min = std::chrono::microseconds{100};
  static constexpr std::uint64_t pause_when_crowded = 1024;
  static constexpr unsigned misses_max = 10;

  Clock::duration limit_;
  std::uint64_t pause_ = 0;  ///< calls until it is tried again
  unsigned misses_ = 0;      ///< in a row
};

}  // namespace torchup
