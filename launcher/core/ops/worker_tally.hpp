#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "launcher/core/agent/save_watch.hpp"
#include "launcher/core/record/launch_event.hpp"
#include "rendezvous/core/ops/metrics_text.hpp"

namespace torchup {

/// This node's workers in numbers, for its metrics: a fold of what was recorded, of looks at the workers' pages, and of
/// what the kernel says of their processes. What grows counts all processes that have had a worker's place. Pure; one
/// for the agent's life.
class WorkerTally {
 public:
  explicit WorkerTally(int local_world_size);

  void record(const EventBody& event);
  void look(std::span<const StepSample> samples);

  struct Process {
    LocalRank local_rank{0};
    std::int64_t pid = 0;
  };
  /// That live.
  [[nodiscard]] std::vector<Process> living() const;
  /// What one of them has used so far.
  void used(const Process& process, double cpu_s, std::uint64_t resident_bytes);

  /// Of workers that have been started once, in their order.
  [[nodiscard]] std::vector<WorkerNumbers> workers() const;
  /// By WorkerEnd's words.
  [[nodiscard]] const std::map<std::string, std::uint64_t, std::less<>>& exits() const { return exits_; }

 private:
  struct Worker {
    std::int64_t pid = 0;  ///< 0: none lives
    WorkerNumbers numbers = {};
    std::uint64_t steps_before = 0;  ///< of the processes before
    double waited_before_s = 0;
    double cpu_before_s = 0;
    std::uint64_t beats = 0;          ///< of this one
    std::int64_t waited_seen_ns = 0;  ///< where its page does not tell of all
  };

  void on(const event::WorkerStarted& event);
  void on(const event::WorkerKept& event);
  void on(const event::WorkerExited& event);
  void on(const event::WorkerAbandoned& event);
  void on(const auto&) {}

  [[nodiscard]] Worker* find(LocalRank local_rank);
  static void end(Worker& worker);

  std::vector<Worker> workers_;  ///< by local rank
  std::map<std::string, std::uint64_t, std::less<>> exits_;
};

}  // namespace torchup
