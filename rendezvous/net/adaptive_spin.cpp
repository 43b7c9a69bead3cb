#include "rendezvous/net/adaptive_spin.hpp"

#include <unistd.h>

#include <limits>

namespace torchup {

AdaptiveSpin::AdaptiveSpin(Clock::duration limit) : limit_{limit} {
  // Of the machine, not of this process: the peer that is waited for may be pinned to another one.
  if (::sysconf(_SC_NPROCESSORS_ONLN) < 2) pause_ = std::numeric_limits<std::uint64_t>::max();
}

}  // namespace torchup
