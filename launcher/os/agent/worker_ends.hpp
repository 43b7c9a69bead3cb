#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "launcher/os/agent/cause_watch.hpp"

namespace torchup {

/// What is known of a worker's end beyond its event.
struct LeftBehind {
  std::int64_t time_us = 0;  ///< of the end, UTC; the error file's where it has one
  WorkerRemains remains = {};
};

/// Makes of a worker's end what the agent machine hears of it: with its page, its last lines, and its error file, for
/// which nothing here waits. Lives on the loop.
class WorkerEnds {
 public:
  struct Listener {
    std::function<void(AgentEvent)> tell;                              ///< WorkerEnded, ExceptionSeen
    std::function<void(EventBody)> record;                             ///< error_file_refused
    std::function<void(const std::string& error_file)> hook_recorded;  ///< and not the program
    std::function<AttemptOutput*()> attempt;                           ///< that runs; null: none
  };
  WorkerEnds(asio::io_context& loop, int local_world_size, const WorkerGroup& workers, Output& output,
             Listener listener);

  void gone(const WorkerId& worker, int exit_code, WorkerRemains remains);
  /// For the last process with this local rank.
  [[nodiscard]] const LeftBehind& of(LocalRank local_rank) const {
    return left_.at(static_cast<std::size_t>(local_rank.value()));
  }
  /// As CauseWatch::seek.
  void seek_cause() { cause_.seek(); }

 private:
  LeftBehind& at(LocalRank local_rank) { return left_.at(static_cast<std::size_t>(local_rank.value())); }
  Task<> with_last_words(WorkerEnded ended, std::string path);

  asio::io_context& loop_;
  Output& output_;
  Listener listener_;
  CauseWatch cause_;
  std::vector<LeftBehind> left_;  ///< index: local rank
};

}  // namespace torchup
