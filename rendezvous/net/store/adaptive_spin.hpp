#pragma once

#include <chrono>
#include <cstdint>

namespace torchup {

/// Polls for a moment before sleeping, as long as that pays. Going to sleep and being woken costs more than the whole
/// round trip between two processes of one machine; but a CPU that polls is missing to whoever could use it.
///
/// It stops by itself: after misses in a row it pauses, for twice as many calls each time. While it polls it offers the
/// CPU to others, and where one takes it (two polls are far apart) it pauses too: shortly at first, since that also
/// happens on a quiet machine, then for long. A machine with one CPU never polls.
class AdaptiveSpin {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr unsigned misses_max = 10;         ///< a pause is of 2^10 - 1 calls at most
  static constexpr std::uint64_t first_pause = 32;   ///< calls, after the CPU was taken
  static constexpr std::uint64_t pause_max = 1024;   ///< calls
  static constexpr std::uint64_t calm_calls = 1024;  ///< successes in a row until that is forgotten
  static constexpr auto taken_away_min = std::chrono::microseconds{100};

  /// `limit` must be longer than it takes to wake the other side, or two that both sleep never find each other awake.
  explicit AdaptiveSpin(Clock::duration limit = std::chrono::microseconds{200});

  struct SteadyNow {
    Clock::time_point operator()() const { return Clock::now(); }
  };

  /// Calls `poll` until it returns true, or the moment is over. False: sleep.
  template <class Poll, class Now = SteadyNow>
  bool run(Poll poll, Now read_clock = {}) {
    if (pause_ > 0) {
      --pause_;
      return false;
    }
    const auto begin = read_clock();
    auto last = begin;
    for (unsigned polls = 1;; ++polls) {
      if (poll()) {
        succeeded();
        return true;
      }
      if (polls % polls_per_offer == 0) offer_cpu();
      const auto now = read_clock();
      if (now - last > taken_away_min) {
        taken_away();
        return false;
      }
      if (now - begin > limit_) {
        missed();
        return false;
      }
      last = now;
    }
  }

 private:
  static constexpr unsigned polls_per_offer = 16;

  static void offer_cpu();
  void succeeded();
  void missed();
  void taken_away();

  Clock::duration limit_;
  std::uint64_t pause_ = 0;  ///< calls until it is tried again
  std::uint64_t next_pause_ = first_pause;
  std::uint64_t calm_ = 0;  ///< successes since the CPU was taken
  unsigned misses_ = 0;     ///< in a row
};

}  // namespace torchup
