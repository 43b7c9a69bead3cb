#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "rendezvous/base/types.hpp"

/// What a job's terms and keep-alives say of hangs and stragglers. Who decides by it stands in core/diagnosis.
namespace torchup {

/// A shorter limit would have everybody examined with each breath, and a shorter window too.
inline constexpr Duration hang_timeout_min = std::chrono::milliseconds{100};
inline constexpr Duration straggler_window_min = std::chrono::seconds{1};
inline constexpr Duration straggler_window_default = std::chrono::seconds{60};

/// --hang-timeout.
struct HangTimeout {
  enum class Mode : std::uint8_t { automatic, off, given };
  Mode mode = Mode::automatic;
  Duration silence{0};                 ///< of `given`; at least hang_timeout_min
  std::optional<Duration> start = {};  ///< until an attempt's first progress; else max(300 s, silence)
  friend bool operator==(const HangTimeout&, const HangTimeout&) = default;
};

/// --on-hang.
enum class OnHang : std::uint8_t { report, abort, restart };

/// What an agent tells of all its workers, in the keep-alive's optional report.
struct ProgressReport {
  bool watched = false;     ///< some worker of this attempt is; else nothing else counts
  bool progressed = false;  ///< there was progress in this attempt
  bool ending = false;      ///< a worker is ending, or has ended with 0
  Duration silence{0};      ///< since the newest progress of any worker, or since the attempt began
  Duration median_gap{0};   ///< between progress and progress in this attempt, an eighth too long at most; 0: none yet
  Duration longest_gap{0};
  friend bool operator==(const ProgressReport&, const ProgressReport&) = default;
};

/// Of one part of an answer or of news, so that it stands in a frame with room for what goes with it.
inline constexpr std::size_t diagnosis_part_bytes_max = std::size_t{256} << 10;

}  // namespace torchup
