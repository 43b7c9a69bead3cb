#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launcher/core/record/launch_event.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/base/worker_page.hpp"

namespace torchup {

/// A living local worker, and what its page says.
struct StepSample {
  Rank rank{0};
  LocalRank local_rank{0};
  std::optional<WorkerProgress> progress;  ///< nothing: it does not use the page, or has not ended a step
};

/// Pauses that a StepWatch remembers apart; two neighbours beyond that become one, with the time between them.
inline constexpr std::size_t pauses_max = 64;

/// Workers that have stopped making progress.
struct HungWorkers {
  std::vector<LocalRank>
      workers;         ///< those that keep the others waiting, or all that are silent if that cannot be told
  std::string reason;  ///< one line for people
  friend bool operator==(const HungWorkers&, const HungWorkers&) = default;
};

/// How often workers are looked at who must not be silent for longer than `timeout` (0: no such limit): a few times
/// within it, and in any case between once in look_interval_min and once in look_interval_max. A shorter timeout is
/// found to be over by the next look.
inline constexpr Duration look_interval_min = std::chrono::milliseconds{100};
inline constexpr Duration look_interval_max = std::chrono::seconds{1};
[[nodiscard]] Duration look_interval(Duration timeout);

/// Watches the heartbeats of one node's workers: who hangs, and who is slow. Pure; one for each attempt.
///
/// A worker is watched from the end of its first step on, so that compiling and loading take as long as they take.
/// While it waits for other ranks in a collective, the fault is not its own: only after twice the time is it called
/// hung, for then nobody was found. Where ranks of other nodes may be waited for, who may well save their state, that
/// is told and no more. Time in which nobody could step is not counted: while a worker saves its state, which is told
/// when it takes long, while all stand still (Ctrl-Z), and while we did not look, for then we stood still ourselves
/// (`docker pause`, a suspended machine).
class StepWatch {
 public:
  /// `heartbeat_timeout` 0: nobody is ever called hung. `other_nodes`: they have workers of this round, too.
  explicit StepWatch(Duration heartbeat_timeout, bool other_nodes = false)
      : heartbeat_timeout_{heartbeat_timeout}, other_nodes_{other_nodes} {}

  /// How long after a look the next one is due.
  [[nodiscard]] Duration interval() const { return look_interval(heartbeat_timeout_); }

  struct Findings {
    std::optional<HungWorkers> hung;      ///< told once
    std::optional<event::SlowRank> slow;  ///< the slowest worker when there is one and it is another than before
    std::optional<std::string> warning;   ///< why nobody is called hung though no step ends
    friend bool operator==(const Findings&, const Findings&) = default;
  };
  /// `now` is the monotonic clock, which the pages use too. `standing`: the workers are made to stand still now, or are
  /// to end; the time since the look before does not count.
  Findings look(std::span<const StepSample> samples, bool standing, TimePoint now);

 private:
  struct Pace {
    std::uint64_t beats = 0;  ///< at the last look
    int looks = 0;            ///< with news
    double work_ns = 0;       ///< smoothed: own work in a step
    double step_ns = 0;
  };
  /// Time in which nobody could step.
  struct Pause {
    TimePoint begin;
    TimePoint end;
  };
  void leave_out(TimePoint begin, TimePoint end);
  [[nodiscard]] Duration counted_since(std::int64_t time_ns, TimePoint now) const;
  void find_hung(std::span<const StepSample> samples, TimePoint now, Findings& findings) const;
  [[nodiscard]] std::optional<std::string> find_saving(std::span<const StepSample> samples, TimePoint now);
  void measure(std::span<const StepSample> samples);
  std::optional<event::SlowRank> find_slow(std::span<const StepSample> samples);

  Duration heartbeat_timeout_;
  bool other_nodes_;
  bool hung_told_ = false;
  Duration saving_told_{0};  ///< how long the save had taken that was told last; 0: none since somebody saves
  std::optional<TimePoint> last_look_;
  std::deque<Pause> pauses_;   ///< in order of time, apart from each other; at most pauses_max
  std::map<int, Pace> paces_;  ///< by local rank
  std::optional<Rank> slow_told_;
};

/// "step 120 ended 31.2 s ago": for reports.
[[nodiscard]] std::string progress_text(const WorkerProgress& progress, TimePoint now);

}  // namespace torchup
