#pragma once

#include <torch/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace c10d {
class Backend;
}

namespace torchup {

/// How a program joins its job's process group. Everything has a default: `init_process_group()` under torchup,
/// torchrun, srun or mpirun needs no argument.
struct ProcessGroupOptions {
  /// "auto": nccl when every rank of the job has a GPU of its own, else gloo on all of them. "gloo", "nccl". "mpi" is
  /// refused: the wheels lack it.
  std::string backend = "auto";
  /// "env://" (MASTER_ADDR, MASTER_PORT, and the ranks of torchup, torchrun, Slurm, Open MPI or PMI),
  /// "tcp://host:port" or "file:///shared/path"; the last two take rank and world size from here, else from the
  /// environment, else from "?rank=0&world_size=2" behind the address.
  std::string init_method = "env://";
  std::optional<int> rank = {};        ///< 0 .. world_size - 1
  std::optional<int> world_size = {};  ///< >= 1
  std::optional<int> local_rank = {};  ///< this process's index on its node, which chooses the GPU
  /// How long the others may take to come, and how long a collective may take. Default: 30 min with gloo, 10 min with
  /// nccl.
  std::optional<std::chrono::milliseconds> timeout = {};
  /// Where collectives' tensors live. By default, and for torch::kCUDA without an index, this worker's own GPU for nccl
  /// (the one with index local_rank, or the only one it is shown), else the CPU.
  std::optional<torch::Device> device = {};
  /// Called while ranks are missing, first after 5 s and then whenever the roster changes; default: one line on stderr.
  std::function<void(std::string_view)> on_waiting = {};
};

/// A set of processes that do collectives together: a cheap value, copies mean the same group.
///
/// Every rank of a group calls its collectives in the same order. Functions of one group are called from one thread.
/// With Elastic::run the job's group is that of the round: all copies get another rank, size and connection in place.
class ProcessGroup {
 public:
  struct State;
  explicit ProcessGroup(std::shared_ptr<State> state) : state_{std::move(state)} {}

  int rank() const;                    ///< 0 .. size() - 1, within this group
  int size() const;                    ///< >= 1
  int local_rank() const;              ///< this process's index on its node
  int local_size() const;              ///< processes of the job on this node
  torch::Device device() const;        ///< where this group's tensors live
  const std::string& backend() const;  ///< "gloo" or "nccl"
  const std::string& name() const;     ///< "0" for the job's group, then "1", …: the names that Python gives
  std::chrono::milliseconds timeout() const;
  /// Rank within the job of each rank of this group.
  const std::vector<int>& global_ranks() const;

  /// A group of some of this group's ranks, in the given order. Collective over *this* group: every rank calls it with
  /// the same list; ranks that are not in it get an empty optional.
  std::optional<ProcessGroup> new_group(std::span<const int> ranks) const;

  /// Ends a good run: waits for what is under way and frees the backend. Nothing may be called afterwards. The last
  /// copy of a group does the same when it goes, unless an exception passes.
  void shutdown();
  /// Ends a bad run at once, without waiting for peers that may be gone. From any thread: a collective that waits in
  /// another one throws, with gloo within milliseconds, and later ones throw Error. Groups that were made of this one
  /// go on. Nothing waits for peers when the last copy goes.
  void abort();

  /// The key-value store of this group, for small things; keys are private to the group.
  c10::intrusive_ptr<c10d::Store> store() const;
  /// "<purpose>/<n>", where n counts the calls with this purpose: a fresh key that all ranks agree on, if all of them
  /// ask in the same order.
  std::string fresh_key(const std::string& purpose) const;
  /// Some ranks of the job are Python processes: collectives work with them, everything above does not.
  bool has_python_ranks() const;
  /// The backend itself, for what this library does not wrap.
  c10d::Backend& c10d_backend() const;

 private:
  friend struct GroupAccess;
  std::shared_ptr<State> state_;
};

/// Joins the job. Without any of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (or Slurm's, MPI's equivalents) the group
/// has one member; with some of them it is an Error that names the missing ones. Binds the GPU before the group exists.
///
/// Throws Error when ranks contradict each other (two alike, other world sizes) and when a rank has not come in time.
ProcessGroup init_process_group(const ProcessGroupOptions& options = {});

}  // namespace torchup
