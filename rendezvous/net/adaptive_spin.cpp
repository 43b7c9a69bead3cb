#include "rendezvous/net/adaptive_spin.hpp"

#include <sched.h>

#include <limits>

namespace torchup {

AdaptiveSpin::AdaptiveSpin(Clock::duration limit) : limit_{limit} {
  cpu_set_t cpus;
  if (::sched_getaffinity(0, sizeof cpus, &cpus) != 0 || CPU_COUNT(&cpus) < 2)
    pause_ = std::numeric_limits<std::uint64_t>::max();
}

}  // namespace torchup
