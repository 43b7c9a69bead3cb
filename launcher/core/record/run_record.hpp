#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/record/launch_event.hpp"
#include "launcher/core/record/time_fold.hpp"

namespace torchup {

/// What a record remembers of a long life: of more attempts the last ones, of more warnings and incidents the last
/// ones, of more places where bytes were lost the sum of the older ones.
inline constexpr std::size_t attempts_kept_max = 64;
inline constexpr std::size_t lines_kept_max = 256;
inline constexpr std::size_t loss_places_max = 1'024;
/// Of a failed worker's message: all of it stands in its error file and in the incident's record.
inline constexpr std::size_t message_bytes_kept_max = 4'096;
/// Attempts in the history of an incident.
inline constexpr std::size_t history_max = 16;

/// One worker's life in one attempt.
struct WorkerRecord {
  WorkerId worker;
  std::int64_t start_us = 0;  ///< UTC
  std::int64_t end_us = 0;    ///< UTC; 0 while it runs
  std::optional<int> exit_code;
  WorkerEnd end = WorkerEnd::succeeded;
  std::string message;  ///< of a long one the beginning, which says how much is left out
  std::string error_file;
  std::string stdout_log;
  std::string stderr_log;
};

struct AttemptRecord {
  std::string name;
  std::string directory;
  int restart_count = 0;
  std::optional<Placement> placement;  ///< the round that it ran in
  std::int64_t start_us = 0;           ///< UTC
  std::int64_t end_us = 0;             ///< UTC; 0 while it runs
  std::string end_reason;
  std::vector<WorkerRecord> workers;  ///< index: local rank
};

/// How long the job spent with what, in microseconds of the monotonic clock.
struct PhaseTimes {
  std::int64_t waiting_us = 0;   ///< no round: rendezvous
  std::int64_t starting_us = 0;  ///< round completed, workers not all started
  std::int64_t running_us = 0;
  std::int64_t stopping_us = 0;
};

/// What is known of the job so far: a fold over its events. A value; the report, the result file and the incident
/// record read it.
class RunRecord {
 public:
  void apply(const LaunchEvent& event);

  [[nodiscard]] const std::optional<event::JobStarted>& job() const { return job_; }
  [[nodiscard]] const std::deque<AttemptRecord>& attempts() const { return attempts_; }
  /// How many attempts came before those.
  [[nodiscard]] std::int64_t attempts_forgotten() const { return attempts_forgotten_; }
  /// The last attempts without their workers, for an incident.
  [[nodiscard]] std::vector<AttemptRecord> history() const;
  /// Workers that are started and have not ended.
  [[nodiscard]] std::int64_t workers_alive() const;
  /// Restarts so far.
  [[nodiscard]] int restart_count() const { return placement_ ? placement_->restart_count : 0; }
  /// Of the newest round that this node is in; 0 before it is in any.
  [[nodiscard]] int world_size() const { return placement_ ? placement_->world_size : 0; }
  [[nodiscard]] const std::deque<std::string>& warnings() const { return warnings_; }
  [[nodiscard]] const std::optional<Verdict>& verdict() const { return verdict_; }
  /// `ok` while this node's workers of the round run; else in one word what is done instead.
  [[nodiscard]] std::string_view readiness() const;
  [[nodiscard]] const PhaseTimes& phases() const { return phases_; }
  /// Where the time of this node's ranks goes.
  [[nodiscard]] const TimeFold& times() const { return times_; }
  [[nodiscard]] std::int64_t start_us() const { return start_us_; }
  [[nodiscard]] std::int64_t end_us() const { return end_us_; }
  [[nodiscard]] std::uint64_t log_bytes_lost() const;
  [[nodiscard]] std::uint64_t console_bytes_lost() const;
  /// Paths of incident records.
  [[nodiscard]] const std::deque<std::string>& incidents() const { return incidents_; }

 private:
  struct Loss {
    std::string where;
    std::uint64_t bytes = 0;
  };
  enum class Phase { before, waiting, starting, running, stopping };
  void enter(Phase phase, std::int64_t monotonic_us);
  WorkerRecord* find(const WorkerId& worker);
  void add_worker(const event::WorkerStarted& started, const EventStamp& at);

  std::optional<event::JobStarted> job_;
  std::optional<Placement> placement_;
  std::deque<AttemptRecord> attempts_;
  std::int64_t attempts_forgotten_ = 0;
  std::deque<std::string> warnings_;
  std::deque<std::string> incidents_;
  std::deque<Loss> log_losses_;  ///< the sum of the older ones has no place
  std::deque<Loss> console_losses_;
  std::optional<Verdict> verdict_;
  PhaseTimes phases_;
  TimeFold times_;
  Phase phase_ = Phase::before;
  std::int64_t phase_since_us_ = 0;
  std::int64_t start_us_ = 0;
  std::int64_t end_us_ = 0;
};

/// Version of the JSON below; grows when a field changes its meaning or goes.
inline constexpr int result_schema = 1;

/// What a probe of the health port is told: one line of JSON.
[[nodiscard]] std::string health_json(const RunRecord& record);

/// The content of `--result-file`: JSON with `schema`, verdict (`exit_code`, `reason`), per rank of this node its exit
/// codes, attempts with their times, phase times, ledger, log paths and losses.
[[nodiscard]] std::string result_json(const RunRecord& record, const std::string& host);

}  // namespace torchup
