#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "rendezvous/base/types.hpp"

namespace torchup {

inline constexpr std::size_t round_trips_kept_max = 64;
/// Times are a stranger's word: between 0 and this, sums and differences of two of them fit.
inline constexpr std::int64_t clock_ns_max = std::int64_t{1} << 61;

/// How far the coordinator's clock is ahead of this node's, by the fastest of the newest round trips. Pure.
class ClockOffset {
 public:
  struct Estimate {
    Duration offset{0};
    Duration error{0};  ///< half of the round trip
    friend bool operator==(const Estimate&, const Estimate&) = default;
  };
  /// Times are since each clock's own beginning: `sent` and `received` of this node, `answered` of the coordinator's,
  /// who answers at once. One that was received before it was sent is passed over.
  void add(Duration sent, Duration answered, Duration received);
  /// Nothing before the first round trip.
  [[nodiscard]] std::optional<Estimate> estimate() const;

 private:
  struct Trip {
    Duration offset{0};
    Duration took{0};
  };
  std::array<Trip, round_trips_kept_max> trips_{};
  std::size_t added_ = 0;
};

}  // namespace torchup
