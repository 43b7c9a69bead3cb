#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "launcher/core/record/launch_event.hpp"

namespace torchup {

/// The job as torchrun's event stream tells it (`--event-log-handler=console`): a fold over our own events, for those
/// who read torchrun's.
///
/// RENDEZVOUS and ASSIGN_WORKER_RANKS for each round, START for each worker; at the end SUCCEEDED, FAILED or TERMINATED
/// for each worker of the last attempt and one event of the agent: SUCCEEDED also when workers failed, FAILED when a
/// signal or anything else ended it.
/// Source: torch/distributed/elastic/agent/server/api.py, _construct_event, _record_worker_events.
class TorchelasticEvents {
 public:
  /// `backend` is the name of --rdzv-backend that is in use.
  TorchelasticEvents(std::string host, std::string backend) : host_{std::move(host)}, backend_{std::move(backend)} {}

  /// What torchrun would print for `event`: lines of JSON in Python's spacing, each with its line end; mostly none.
  [[nodiscard]] std::string apply(const LaunchEvent& event);

 private:
  struct WorkerState {
    WorkerId worker;
    std::optional<event::WorkerExited> exited;
  };

  std::string agent_line(const char* state, std::optional<double> duration_ms, const std::string& raw_error) const;
  std::string worker_line(const char* state, const WorkerState& worker) const;
  std::string at_the_end(const Verdict& verdict);

  std::string host_;
  std::string backend_;
  std::string run_id_;
  std::string role_;
  std::string entry_point_;
  std::optional<Placement> placement_;
  std::map<int, WorkerState> workers_;  ///< of the running attempt, by local rank
  int restart_count_ = 0;
  std::int64_t start_us_ = 0;  ///< monotonic
  std::int64_t waiting_since_us_ = 0;
  std::int64_t run_time_s_ = 0;  ///< 0 until the end, as torchrun
};

}  // namespace torchup
