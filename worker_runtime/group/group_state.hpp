#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "torchup/process_group.hpp"
#include "worker_runtime/group/gloo_sockets.hpp"
#include "worker_runtime/place/worker_place.hpp"

namespace torchup {

/// What all groups of a process share.
struct JobState {
  WorkerPlace place;
  c10::intrusive_ptr<c10d::Store> default_store;  ///< under Python's prefix "default_pg"
  bool hosts_store = false;                       ///< the store's server lives in this process
  bool all_native = true;                         ///< no rank is a Python process
};

struct ProcessGroup::State {
  std::shared_ptr<const JobState> job;
  std::string name = "0";
  std::string backend_name;
  torch::Device device{torch::kCPU};
  std::chrono::milliseconds timeout{};
  int rank = 0;
  std::vector<int> global_ranks;
  int children = 0;  ///< groups made from this one so far
  std::map<std::string, int> keys_used;
  std::atomic<bool> ended = false;  ///< shut down or aborted
  c10::intrusive_ptr<c10d::Store> group_store;
  c10::intrusive_ptr<c10d::Store> user_store;
  c10::intrusive_ptr<c10d::Backend> backend;
  std::optional<GlooSockets> gloo_sockets;  ///< where the backend is gloo

  State() = default;
  /// A group of the same job, without what is a group's own.
  [[nodiscard]] std::shared_ptr<State> child() const;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();
};

/// Fills in the stores of a group from its name and the store that it lies in.
void open_stores(ProcessGroup::State& state, const c10::intrusive_ptr<c10d::Store>& parent);

}  // namespace torchup
