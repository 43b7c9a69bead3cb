#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "launcher/core/agent/save_watch.hpp"
#include "launcher/core/record/launch_event.hpp"
#include "rendezvous/core/link/node_report.hpp"

namespace torchup {

/// Whoever has waited for others in a collective for longer is shown as waiting.
inline constexpr Duration long_wait = std::chrono::seconds{1};
/// Steps a second are those of so long at least, where steps are known of so long.
inline constexpr Duration step_rate_window = std::chrono::seconds{10};

/// What a node's workers do, for its report: a letter for each, and how far they are. A fold of what was recorded and
/// of the looks at the workers' pages, which are a stranger's word. Pure; one for the agent's life.
class NodeSight {
 public:
  explicit NodeSight(int local_world_size);

  void record(const EventBody& event);
  void look(std::span<const StepSample> samples, TimePoint now);

  /// Without the time spent, which the ledger has.
  [[nodiscard]] NodeReport report(TimePoint now) const;

 private:
  /// Of the newest attempt.
  struct Worker {
    enum class Life { absent, lives, succeeded, failed, terminated, unknown };
    Life life = Life::absent;
    bool hung = false;
    bool opened = false;  ///< it is about to report steps, or does
    std::optional<WorkerProgress> progress = {};
    std::uint64_t counted = 0;  ///< of its beats, which go on where it is kept
  };
  /// Steps of all workers by then, since the window began.
  struct Mark {
    TimePoint at{};
    std::uint64_t beats = 0;
  };

  void on(const event::RoundCompleted& event);
  void on(const event::WorkerStarted& event);
  void on(const event::WorkerKept& event);
  void on(const event::WorkerExited& event);
  void on(const event::WorkerAbandoned& event);
  void on(const event::SpawnFailed& event);
  void on(const event::WorkerHung& event);
  void on(const event::HangOver& event);
  void on(const auto&) {}

  [[nodiscard]] Worker* find(LocalRank local_rank);
  void begin(LocalRank local_rank, std::uint64_t counted);
  void count(Worker& worker, std::uint64_t beats);
  void end(LocalRank local_rank, Worker::Life life);
  [[nodiscard]] static char letter(const Worker& worker, TimePoint now);
  [[nodiscard]] std::int64_t milli_steps_per_second() const;

  std::vector<Worker> workers_;  ///< by local rank
  std::uint64_t beats_ = 0;      ///< since the agent began
  std::deque<Mark> marks_;  ///< of this attempt, oldest first; the first one is older than the window, or the only one
};

}  // namespace torchup
