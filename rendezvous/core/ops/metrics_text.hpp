#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/ops/job_page.hpp"
#include "rendezvous/core/ops/turn_histogram.hpp"
#include "rendezvous/core/round/job_watch.hpp"
#include "rendezvous/core/store/store_status.hpp"

/// Numbers for Prometheus, in its text format 0.0.4. Pure.
///
/// A job costs about 60 lines however many nodes it has: no label names a node, a host or a process but in
/// `torchup_worker_late_seconds`, which tells of late_workers_told_max workers of a job at most, and at an agent, which
/// tells of its own workers. A job's label is `run_id`: `job` is Prometheus' own.
namespace torchup {

inline constexpr std::string_view metrics_content_type = "text/plain; version=0.0.4; charset=utf-8";
inline constexpr Duration ended_job_told = std::chrono::minutes{5};
inline constexpr std::size_t jobs_told_max = 200;
inline constexpr std::size_t late_workers_told_max = 20;

enum class MetricType : std::uint8_t { gauge, counter, histogram };
struct Metric {
  std::string_view name;
  MetricType type;
  std::string_view labels;  ///< their names, by commas
  std::string_view help;
};
/// Every metric that any process of ours tells of.
[[nodiscard]] std::span<const Metric> all_metrics();

/// Every process.
struct ProcessNumbers {
  std::string version = {};
  double cpu_s = 0;
  std::uint64_t resident_bytes = 0;
  std::uint64_t open_fds = 0, max_fds = 0;
  double started_s = 0;  ///< since 1970
};
[[nodiscard]] std::string process_metrics(const ProcessNumbers& process);

/// A coordinator, and the store beside it.
struct CoordinatorNumbers {
  StoreServerStatus store = {};
  TurnHistogram turns = {};
  std::uint64_t agents = 0;                         ///< connected
  std::map<int, std::uint64_t> http_requests = {};  ///< by status
  std::uint64_t event_readers = 0, events_lost = 0;
  std::vector<JobNumbers> jobs = {};
  std::vector<std::pair<RunId, std::vector<LateWorker>>> late_workers = {};  ///< the latest first
};
/// Jobs that go on come first, then those that have ended last; of the others it is told how many there are.
[[nodiscard]] std::string coordinator_metrics(const CoordinatorNumbers& coordinator);

/// An agent's own worker.
struct WorkerNumbers {
  Rank rank{0};
  LocalRank local_rank{0};
  bool up = false;
  std::optional<std::int64_t> step = {};  ///< the last that it reported
  std::uint64_t steps = 0;                ///< reported by all processes that had its place
  double waited_s = 0;                    ///< of them, for other ranks
  double cpu_s = 0;                       ///< likewise
  std::uint64_t resident_bytes = 0;
  std::uint64_t starts = 0;
};
struct AgentNumbers {
  std::string run_id = {};
  std::vector<WorkerNumbers> workers = {};
  std::map<std::string, std::uint64_t, std::less<>> exits = {};  ///< by WorkerEnd's words
  TimeLedger ledger = {};
  std::uint64_t log_lost_bytes = 0;
};
[[nodiscard]] std::string agent_metrics(const AgentNumbers& agent);

/// A label's value as it is written between quotes, whatever it is: one line, valid UTF-8.
[[nodiscard]] std::string label_text(std::string_view value);

}  // namespace torchup
