#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "launcher/core/agent/agent_events.hpp"
#include "launcher/core/options/launch_config.hpp"
#include "launcher/os/io/loop_post.hpp"
#include "rendezvous/core/text/log_line.hpp"

/// Slurm's own commands, asked about the job that we run in (core/scheduler/slurm_job). Each is a child of ours.
namespace torchup {

/// Of one command. A controller that is busy answers late, one that is gone never.
inline constexpr Duration slurm_command_limit = std::chrono::seconds{10};
/// So much of the job's time is left to it for its way back into the queue.
inline constexpr Duration requeue_time = std::chrono::seconds{3};

/// What `squeue` says of the job's time. Blocks. Errors: errc::timed_out; errc::refused with its own words.
[[nodiscard]] Result<std::string> ask_time_left(const std::string& squeue, const std::string& job);

/// A node's last act, when nothing of it lives: puts the job back into the queue, if one that has ended with
/// `exit_code` is to go there. Blocks. Returns what is to be said of it; nothing where nobody expects that.
[[nodiscard]] std::optional<LogLine> requeue(const RequeueConfig& config, int exit_code);

/// Knows when the time of the job ends. Lives on the loop.
class JobTime {
 public:
  struct Hooks {
    std::function<void(AgentEvent)> tell;   ///< EndOfTime
    std::function<void(EventBody)> record;  ///< why it is not known
  };
  JobTime(asio::io_context& loop, const LaunchConfig& config, Hooks hooks);
  ~JobTime();
  JobTime(const JobTime&) = delete;
  JobTime& operator=(const JobTime&) = delete;

  /// Tells what the plan knows.
  void begin();
  /// Asks Slurm, aside; where it does not say, what was known stands.
  void ask();
  /// Until then; nothing where it is not known, or never.
  [[nodiscard]] Duration left() const;

 private:
  void know(std::optional<TimePoint> end);
  void heard(const Result<std::string>& answer);

  const LaunchConfig& config_;
  const Hooks hooks_;
  LoopPost post_;
  std::optional<TimePoint> end_;
};

}  // namespace torchup
