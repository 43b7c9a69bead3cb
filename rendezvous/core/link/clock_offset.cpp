#include "rendezvous/core/link/clock_offset.hpp"

#include <algorithm>
#include <span>

namespace torchup {

void ClockOffset::add(Duration sent, Duration answered, Duration received) {
  if (received < sent) return;
  const Duration took = received - sent;
  answered = std::clamp(answered, -Duration{clock_ns_max}, Duration{clock_ns_max});  // another machine's word
  trips_[added_ % trips_.size()] = {.offset = answered - (sent + took / 2), .took = took};
  ++added_;
}

std::optional<ClockOffset::Estimate> ClockOffset::estimate() const {
  if (added_ == 0) return std::nullopt;
  const auto newest = std::span{trips_}.first(std::min(added_, trips_.size()));
  const Trip& fastest = std::ranges::min(newest, {}, &Trip::took);
  return Estimate{.offset = fastest.offset, .error = fastest.took / 2};
}

}  // namespace torchup
