#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/base/cpu_set.hpp"
#include "rendezvous/base/result.hpp"

namespace torchup {

/// What one task of a node is bound to, where the scheduler starts several.
struct SeatCard {
  int task = 0;
  CpuSet cpus = {};                         ///< its affinity mask
  std::optional<std::string> devices = {};  ///< its CUDA_VISIBLE_DEVICES
  friend bool operator==(const SeatCard&, const SeatCard&) = default;
};

/// What the workers of that node are bound to.
struct SeatedWorkers {
  std::vector<CpuSet> cpus;            ///< index: local rank
  std::optional<std::string> devices;  ///< CUDA_VISIBLE_DEVICES of all of them; nothing: as it is
  friend bool operator==(const SeatedWorkers&, const SeatedWorkers&) = default;
};

/// Binds `workers` workers as the scheduler bound `tasks` tasks: worker i to task i's CPUs, or where they are not as
/// many, each to all CPUs of all tasks. Devices are those of all tasks in their order, each once, so that a local rank
/// is an index among them as under torchrun.
///
/// `gpus` is how many the node has, where the scheduler says so.
///
/// Errors: errc::bad_value where the cards are not those of the tasks 0 to `tasks` - 1; errc::refused (exit code 65)
/// where tasks name fewer devices than the node has: then each task has a devices cgroup of its own, in which every one
/// is called 0, and no process may use another task's.
[[nodiscard]] Result<SeatedWorkers> seat_workers(std::span<const SeatCard> cards, int tasks, int workers,
                                                 std::optional<int> gpus);

}  // namespace torchup
