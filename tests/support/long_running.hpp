#pragma once

#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/net/io/lasting_clock.hpp"

namespace torchup::test {

/// A coordinator that has been there for long: nobody can have lost an earlier one lately.
inline RendezvousSettings long_running() {
  RendezvousSettings settings;
  settings.started = lasting_now() - std::chrono::hours{1};
  return settings;
}

}  // namespace torchup::test
