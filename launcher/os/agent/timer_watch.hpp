#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "launcher/core/agent/agent.hpp"
#include "launcher/os/agent/worker_group.hpp"
#include "launcher/os/worker/watchdog.hpp"

namespace torchup {

/// The file-timer watchdog of a job, and which worker answers for a process whose time is up. Lives on the loop.
class TimerWatch {
 public:
  struct Listener {
    std::function<void(AgentEvent)> tell;   ///< TimerExpired
    std::function<void(EventBody)> record;  ///< warning
    std::function<void(LogLine)> said;      ///< what workers make it say, as often as they like
  };
  /// `path`: of its named pipe; empty: nobody asked for a watchdog, and nothing here does anything.
  TimerWatch(asio::io_context& loop, const std::string& path, const WorkerGroup& workers, Listener listener);

  /// Before the workers of an attempt start. A watchdog that cannot be had is told, and not worth a job.
  void open();
  /// Nothing of the attempt lives any more.
  void close();
  void worker_gone(std::int64_t pid);
  /// A worker may write before it is known that it runs: its timer that ran out by then.
  [[nodiscard]] std::optional<TimerExpired> expired_before(const WorkerStarted& started);

 private:
  void expired(pid_t pid, std::string scope, int number);

  const WorkerGroup& workers_;
  Listener listener_;
  std::map<pid_t, TimerExpired> early_;  ///< by process: no worker answers for it yet
  std::optional<Watchdog> watchdog_;
};

}  // namespace torchup
