#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "launcher/core/record/operation_events.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/base/worker_page.hpp"

namespace torchup {

/// How often the record tells how far the workers are.
inline constexpr Duration progress_told_interval = std::chrono::seconds{30};

/// The steps of a node's workers in the running attempt, by looks at their pages, which are a stranger's word. Pure;
/// one for the agent's life.
class StepTally {
 public:
  explicit StepTally(int local_world_size);

  /// An attempt begins. What those that live on (`kept`) have ended by then is of the one before.
  void begin(Rank first_rank, std::span<const LocalRank> kept, TimePoint now);
  void look(LocalRank local_rank, const WorkerProgress& progress);

  /// Nothing: it has ended no step in this attempt.
  [[nodiscard]] std::optional<WorkerSteps> of(LocalRank local_rank) const;
  /// What is to be told: once in progress_told_interval, or where the attempt `ends`. Nothing where no worker reports
  /// steps.
  [[nodiscard]] std::optional<event::Progress> tell(TimePoint now, bool ends);

 private:
  struct Worker {
    std::uint64_t newest = 0;           ///< its beats, and all its waiting, by the newest look
    std::int64_t newest_waited_ns = 0;  ///< 0: not known
    std::uint64_t beats_before = 0;     ///< this attempt
    std::int64_t waited_before_ns = 0;  ///< the first step in it
    std::optional<WorkerSteps> steps = {};
    std::optional<WorkerSteps> told = {};  ///< as in the event before
  };
  [[nodiscard]] static double pace(const Worker& worker);

  std::vector<Worker> workers_;  ///< by local rank
  Rank first_rank_{0};
  TimePoint next_{};
};

}  // namespace torchup
