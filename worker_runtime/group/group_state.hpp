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
#include "worker_runtime/group/group_connection.hpp"
#include "worker_runtime/place/worker_place.hpp"

namespace torchup {

/// What all groups of a process share.
struct JobState {
  WorkerPlace place;
  c10::intrusive_ptr<c10d::Store> default_store;  ///< under Python's prefix "default_pg"
  bool hosts_store = false;                       ///< the store's server lives in this process
  bool all_native = true;                         ///< no rank is a Python process
  bool some_kept = false;  ///< ranks that were in the job before: they are inside of Elastic::run
};

/// Where the program is with regard to Elastic::run.
enum class RunPhase {
  none,    ///< outside, as all ranks are
  others,  ///< outside, while others of the round are inside, where they have survived the one before: nobody would
           ///< take part in a collective
  inside,
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
  std::unique_ptr<GroupConnection> connection;
  std::optional<ProcessGroupOptions> joined_by = {};  ///< of the job's group: how to join again
  int round = 0;                                      ///< how many earlier rounds this handle has been through
  RunPhase run = RunPhase::none;
  std::atomic<std::int64_t> uses_before_run = 0;  ///< collectives that are the program's own, and groups of this one

  State() = default;
  /// A group of the same job, without what is a group's own.
  [[nodiscard]] std::shared_ptr<State> child() const;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();
};

/// The state behind a handle, for the rooms of this library.
struct GroupAccess {
  static ProcessGroup::State& state(const ProcessGroup& group) { return *group.state_; }
};

/// Fills in the stores of a group from its name and the store that it lies in.
void open_stores(ProcessGroup::State& state, const c10::intrusive_ptr<c10d::Store>& parent);

}  // namespace torchup
