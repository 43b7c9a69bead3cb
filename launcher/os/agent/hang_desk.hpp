#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "launcher/core/agent/agent.hpp"
#include "launcher/os/agent/worker_group.hpp"
#include "launcher/os/diagnosis/look_taker.hpp"
#include "launcher/os/output/worker_output.hpp"
#include "rendezvous/net/io/asio.hpp"

namespace torchup {

/// Does what the agent machine wants about workers that hang: has them looked at, and shows and writes what was found.
/// Lives on the loop; looks and files have threads of their own.
class HangDesk {
 public:
  struct Hooks {
    /// LooksTaken, ArrivalsSeen.
    std::function<void(AgentEvent)> tell;
    /// hang_found, ranks_shown, worker_seen; fault where a file cannot be written.
    std::function<void(EventBody)> record;
    /// As AgentLink::clock.
    std::function<std::optional<ClockOffset::Estimate>()> clock;
  };
  HangDesk(asio::io_context& loop, const LaunchConfig& config, WorkerGroup& workers, Output& output, Hooks hooks);

  void perform(const TakeLooks& action);
  /// `directory`: of the attempt; empty: it has none.
  void perform(TellHang& action, const std::string& directory);
  void perform(const ShowWorkers& action);
  /// What a worker has answered.
  void heard(LocalRank local_rank, const WorkerLooked& answer) { taker_.heard(local_rank, answer); }

 private:
  Task<> write(std::shared_ptr<const TellHang> told, std::string path);

  asio::io_context& loop_;
  WorkerGroup& workers_;
  Output& output_;
  const bool writes_files_;  ///< the user has named a folder for them
  Hooks hooks_;
  LookTaker taker_;
};

}  // namespace torchup
