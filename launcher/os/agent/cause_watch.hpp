#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "launcher/core/agent/agent.hpp"
#include "launcher/os/agent/worker_group.hpp"
#include "launcher/os/output/worker_output.hpp"
#include "rendezvous/net/io/asio.hpp"

namespace torchup {

/// How long after one look at the pages of living workers the next one is due, while a cause is sought.
inline constexpr Duration cause_look_interval = std::chrono::milliseconds{20};

/// Tells of exceptions that have left the programs of living workers: by their pages, and by what their error files say
/// of them. Of each once; of those of one process the last counts. Lives on the loop.
class CauseWatch {
 public:
  struct Listener {
    std::function<void(AgentEvent)> tell;                 ///< ExceptionSeen
    std::function<std::string(LocalRank)> error_file_of;  ///< in the running attempt; empty: none
  };
  CauseWatch(asio::io_context& loop, const WorkerGroup& workers, Output& output, Listener listener);

  /// Looks once, unless that was done a moment ago.
  Task<> look();
  /// Looks again and again, for cause_patience.
  void seek();

 private:
  Task<> look_again();
  [[nodiscard]] bool is_told(const RaisedWorker& worker) const;

  asio::io_context& loop_;
  const WorkerGroup& workers_;
  Output& output_;
  Listener listener_;
  std::map<std::int64_t, std::int64_t> told_;  ///< by process, when the exception that was told left its program
  TimePoint looked_at_{};
  std::optional<TimePoint> seeks_until_;
};

}  // namespace torchup
