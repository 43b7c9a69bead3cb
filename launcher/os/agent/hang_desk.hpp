#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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

  /// What somebody who asks is shown of workers that live: one look at them, as fast as it can be.
  /// `native`: as in LookOrder. Errors: as LookTaker::take.
  [[nodiscard]] Result<> show(const std::vector<LocalRank>& workers, bool native, LooksShown shown);
  void perform(const TakeLooks& action);
  /// `directory`: of the attempt; empty: it has none.
  void perform(TellHang& action, const std::string& directory);
  void perform(const ShowWorkers& action);
  /// What a worker has answered.
  void heard(LocalRank local_rank, const WorkerLooked& answer) { taker_.heard(local_rank, answer); }

 private:
  [[nodiscard]] LookOrder order_of(std::uint64_t number, const std::vector<LocalRank>& workers);
  void taken(LookTaken look);
  Task<> write(std::shared_ptr<const TellHang> told, std::string path);

  asio::io_context& loop_;
  WorkerGroup& workers_;
  Output& output_;
  const bool writes_files_;  ///< the user has named a folder for them
  Hooks hooks_;
  std::uint64_t asked_count_ = 0;
  std::map<std::uint64_t, LooksShown> asked_;  ///< by the numbers of looks that are no action's
  LookTaker taker_;
};

}  // namespace torchup
