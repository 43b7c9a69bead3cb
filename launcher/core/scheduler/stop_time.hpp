#pragma once

#include <optional>
#include <string_view>

#include "launcher/core/options/launch_config.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

/// A job that is longer than the time it has: when its workers are asked to save and stop, and when they are ended.
namespace torchup {

/// So long before the workers are asked it is asked again when the time ends: somebody may have changed it.
inline constexpr Duration end_asked_ahead = std::chrono::seconds{60};
/// What is left of the time for workers that have not saved by then, where the lead is long enough.
inline constexpr Duration unsaved_limit = std::chrono::seconds{30};
/// So often it is asked where nobody has told it at the start.
inline constexpr Duration untold_asked_every = std::chrono::minutes{1};
/// Ends that differ by less are the same one: Slurm tells whole seconds.
inline constexpr Duration end_slack = std::chrono::seconds{5};

/// `300`, `90s`, `5m`, `1h30m`, `1d`: days, hours, minutes and seconds, each once and in this order. Nothing for
/// anything else, for no time at all and for more than duration_max.
[[nodiscard]] std::optional<Duration> parse_duration(std::string_view text);

/// `DURATION[@SIGNAL]`. Errors: errc::bad_value, what is wrong with it.
[[nodiscard]] Result<StopBefore> parse_stop_before(std::string_view text);

/// When what is due.
class StopTime {
 public:
  /// `lead`: so long before the end the workers are asked. `grace`: the longest between SIGTERM and SIGKILL. `asks`:
  /// somebody can be asked again when the time ends. `untold`: nobody has told it at the start.
  StopTime(Duration lead, Duration grace, bool asks, bool untold = false)
      : lead_{lead}, grace_{grace}, asks_{asks}, untold_{untold} {}

  /// The time ends then; nothing: never. Workers that are being asked already have the time that was known.
  void know(std::optional<TimePoint> end);

  enum class Due {
    nothing,
    asking,    ///< it is to be asked again when the time ends; once, until another end is known; while none was told,
               ///< again and again
    stopping,  ///< the workers are to be asked to save and stop; once
  };
  [[nodiscard]] Due due(TimePoint now);
  /// When something is due next, if no other end comes to be known.
  [[nodiscard]] std::optional<TimePoint> deadline() const;

  /// Another node has stopped the job, for the end of its time. Its clock may be ahead; where that is not what is known
  /// here of the end, it comes to be known so.
  /// Returns whether workers are to be asked; else they are already.
  [[nodiscard]] bool heed_stop(TimePoint now);
  /// The workers are being asked now, whoever's time it was.
  void stop() { stopping_ = true; }
  [[nodiscard]] bool is_stopping() const { return stopping_; }

  /// When those that have not saved get SIGTERM: `unsaved_limit` before the end, with a short lead after four fifths of
  /// it. And SIGKILL, while there is time for that too. Only where an end is known.
  [[nodiscard]] TimePoint terminate_at() const;
  [[nodiscard]] TimePoint kill_at() const;
  [[nodiscard]] TimePoint end() const { return *end_; }

 private:
  [[nodiscard]] Due untold_due(TimePoint now);
  [[nodiscard]] Duration unsaved_time() const;

  const Duration lead_;
  const Duration grace_;
  const bool asks_;
  bool untold_;
  std::optional<TimePoint> end_;
  std::optional<TimePoint> untold_ask_;  ///< while it is untold
  bool asked_ = false;
  bool stopping_ = false;
};

}  // namespace torchup
