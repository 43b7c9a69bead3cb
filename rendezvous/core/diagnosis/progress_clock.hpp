#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/hang_terms.hpp"

namespace torchup {

/// What one living local worker shows of its progress. Times are CLOCK_MONOTONIC in nanoseconds, and a stranger's word.
struct WorkerSigns {
  LocalRank local_rank{0};
  bool watched = false;             ///< progress can be expected of it: it has begun a process group, or ended a step
  std::uint64_t beats = 0;          ///< steps that it has ended
  std::int64_t beat_ns = 0;         ///< when the last one ended
  std::uint64_t collectives = 0;    ///< sum of its groups' sequence numbers
  std::int64_t collectives_ns = 0;  ///< when that changed last
  bool ending = false;              ///< its interpreter ends
  friend bool operator==(const WorkerSigns&, const WorkerSigns&) = default;
};

/// Looks that come so many intervals after the one before were kept from us, nobody knows since when: that time does
/// not count.
inline constexpr int progress_late_intervals = 3;

/// Gaps by their length, eight classes to a doubling, from a microsecond to half a year: a median of as many as there
/// are, in memory that does not grow.
class GapCounts {
 public:
  void add(Duration gap);
  /// The upper end of the median's class; 0 without gaps.
  [[nodiscard]] Duration median() const;

 private:
  static constexpr std::size_t classes = 8 * 42;
  std::array<std::uint64_t, classes> counts_{};
  std::uint64_t all_ = 0;
};

/// How long no worker of one node has made progress, in one attempt. Pure.
///
/// Progress is a step's end, or a change of `collectives`. It is known by the counts; when it was, by the worker's word
/// as far as that lies between two looks. Time in which nobody could get on does not count: while all stand still
/// (Ctrl-Z), are stopped, drained or re-formed, and while we did not look ourselves.
class ProgressClock {
 public:
  /// `interval`: from look to look. `begin`: when the attempt's workers were started, or kept ones were told to go on.
  ProgressClock(Duration interval, TimePoint begin) : interval_{interval}, last_look_{begin} {}

  /// `standing`: since the look before, or now, workers are made to stand still or to end.
  /// A `local_rank` beyond local_workers_max is passed over.
  void look(std::span<const WorkerSigns> workers, bool standing, TimePoint now);
  /// A worker has ended with 0.
  void worker_ended() { ended_ = true; }

  [[nodiscard]] const ProgressReport& report() const { return report_; }

 private:
  struct Counts {
    std::uint64_t beats = 0;
    std::uint64_t collectives = 0;
  };
  [[nodiscard]] std::optional<TimePoint> newest_progress(std::span<const WorkerSigns> workers, TimePoint now);

  Duration interval_;
  TimePoint last_look_;
  bool first_look_ = true;
  bool ended_ = false;
  std::map<int, Counts> counts_;  ///< by local rank
  GapCounts gaps_;
  ProgressReport report_;
};

}  // namespace torchup
