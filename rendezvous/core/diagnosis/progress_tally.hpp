#pragma once

#include <cstddef>
#include <optional>
#include <set>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/hang_terms.hpp"

namespace torchup {

inline constexpr Duration hang_start_limit = std::chrono::seconds{300};
inline constexpr Duration hang_silence_min = std::chrono::seconds{60};
inline constexpr int hang_median_factor = 10;
inline constexpr int hang_longest_factor = 2;

/// What the agents of a job have told of their progress, taken together: each tells of itself every second, and one
/// more report must not cost the more the more agents there are. Pure.
///
/// Those count that are watched; where nobody is, and the user gave a limit, all do. What a stranger told is no longer
/// than duration_max, so that nothing overflows.
class ProgressTally {
 public:
  void add(const ProgressReport& report);
  /// One that was added.
  void remove(const ProgressReport& report);

  [[nodiscard]] bool watched() const { return !watched_.silences.empty(); }
  /// How long all may be silent; nothing: as long as they like.
  [[nodiscard]] std::optional<Duration> limit(const HangTimeout& timeout) const;
  /// The least of those that count; 0 where none does.
  [[nodiscard]] Duration least_silence(const HangTimeout& timeout) const;

 private:
  struct Reports {
    std::multiset<Duration> silences = {};
    std::multiset<Duration> limits = {};  ///< by their gaps alone
    std::size_t progressed = 0;
    std::size_t ending = 0;
    void add(const ProgressReport& report);
    void remove(const ProgressReport& report);
  };
  [[nodiscard]] const Reports& counting(const HangTimeout& timeout) const;

  Reports watched_, all_;
};

}  // namespace torchup
