#include "rendezvous/net/store/adaptive_spin.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

namespace torchup {

AdaptiveSpin::AdaptiveSpin(Clock::duration limit) : limit_{limit} {
  // Of the machine, not of this process: the peer that is waited for may be pinned to another one.
  if (::sysconf(_SC_NPROCESSORS_ONLN) < 2) pause_ = std::numeric_limits<std::uint64_t>::max();
}

void AdaptiveSpin::offer_cpu() { ::sched_yield(); }

void AdaptiveSpin::succeeded() {
  misses_ = 0;
  if (++calm_ >= calm_calls) next_pause_ = first_pause;
}

void AdaptiveSpin::missed() {
  misses_ = std::min(misses_ + 1, misses_max);
  pause_ = (std::uint64_t{1} << misses_) - 1;
}

void AdaptiveSpin::taken_away() {
  pause_ = next_pause_;
  next_pause_ = std::min(2 * next_pause_, pause_max);
  calm_ = 0;
}

}  // namespace torchup
