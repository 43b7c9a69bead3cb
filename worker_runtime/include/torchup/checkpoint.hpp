#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <torchup/distributed_data_parallel.hpp>
#include <torchup/distributed_sampler.hpp>
#include <torchup/process_group.hpp>
#include <torchup/safetensors.hpp>
#include <torchup/state_dict.hpp>
#include <type_traits>
#include <vector>

namespace torchup {

struct Gathered;

/// Where training stands, in the program's own count.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t step = 0;

  friend bool operator==(const Position&, const Position&) = default;
};

struct CheckpointOptions {
  int keep_last = 3;         ///< older ones of the folder, whoever saved them, go once a newer one is complete; 0: none
  bool must_resume = false;  ///< resume() throws when there is nothing to resume from (a program's --resume)
  bool asynchronous = true;  ///< save() returns when the state is copied; false: when it is on disk
};

/// Anything with state_dict() and load_state_dict(): schedulers, scalers, parts of one's own.
template <class T>
concept HasStateDict = requires(T& part, const StateDict& state) {
  { part.state_dict() } -> std::convertible_to<StateDict>;
  part.load_state_dict(state);
};

/// A part with `static constexpr bool differs_by_rank = true` has a state of its own on every rank: all of them are in
/// the checkpoint, and each rank gets its own again. With another world size rank r gets that of rank r modulo the old
/// one, and it is the part's business to tell. Of all other parts rank 0's state is everybody's.
template <class T>
inline constexpr bool state_differs_by_rank = false;
template <class T>
requires requires { T::differs_by_rank; }
inline constexpr bool state_differs_by_rank<T> = T::differs_by_rank;

/// A part with `static constexpr bool state_is_collective = true` gathers its state from all ranks: every rank calls
/// state_dict() for it.
template <class T>
inline constexpr bool has_collective_state = false;
template <class T>
requires requires { T::state_is_collective; }
inline constexpr bool has_collective_state<T> = T::state_is_collective;

/// What a checkpoint holds, by reference: the parts must outlive their use. Made from the arguments of save and resume,
/// and of Elastic::run.
struct CheckpointParts {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<torch::optim::Optimizer*> optimizers;
  std::optional<DistributedSampler> sampler;
  DataParallelCore* ddp = nullptr;
  struct Stateful {
    std::function<StateDict()> get;
    std::function<void(const StateDict&)> set;
    bool differs_by_rank;
    bool is_collective;  ///< all ranks take part in `get`
  };
  std::vector<Stateful> others;

  template <class... Parts>
  static CheckpointParts of(Parts&... parts) {
    CheckpointParts all;
    (add(all, parts), ...);
    return all;
  }

 private:
  template <class Part>
  static void add(CheckpointParts& all, Part& part) {
    if constexpr (std::is_base_of_v<DataParallelCore, Part>) {
      all.ddp = &part;
    } else if constexpr (std::is_same_v<Part, DistributedSampler>) {
      all.sampler = part;
    } else if constexpr (std::is_base_of_v<torch::nn::Module, Part>) {
      all.module = part.shared_from_this();
    } else if constexpr (requires { std::shared_ptr<torch::nn::Module>{part.ptr()}; }) {
      all.module = part.ptr();
    } else if constexpr (std::is_convertible_v<Part&, std::shared_ptr<torch::nn::Module>>) {
      all.module = part;
    } else if constexpr (HasStateDict<Part>) {
      all.others.push_back({[&part] { return part.state_dict(); },
                            [&part](const StateDict& state) { part.load_state_dict(state); },
                            state_differs_by_rank<Part>, has_collective_state<Part>});
    } else {
      static_assert(std::is_base_of_v<torch::optim::Optimizer, Part>,
                    "a checkpoint's part is a module, an optimizer, a sampler, a DDP wrapper, or has state_dict() and "
                    "load_state_dict()");
      add_optimizer(all, part);
    }
  }

  /// An optimizer by what it is, not by the type of the reference to it: one whose state is shared out over the ranks
  /// has a state_dict() that gathers it.
  static void add_optimizer(CheckpointParts& all, torch::optim::Optimizer& optimizer);
};

/// Checkpoints of a training job in a folder: each whole or not there at all, checked when read, written while training
/// goes on.
///
///   torchup::Checkpoint checkpoint{"ckpt", group, {.keep_last = 3}};
///   auto at = checkpoint.resume(net, optimizer, sampler, ddp);     // {0, 0} when there is none yet
///   ...
///   checkpoint.save({.epoch = epoch, .step = step}, net, optimizer, sampler, ddp);
///   ...
///   checkpoint.wait();                                             // at the end: the last save may have failed
///
/// Parts, in any order but the same in save and resume: a module (holder or shared_ptr), torch::optim optimizers, the
/// sampler, the DDP wrapper (its bucket layout), and whatever has state_dict() and load_state_dict(). Random number
/// generators of every rank are part of every checkpoint.
///
/// On disk: FOLDER/step-000000000120/ with model.safetensors (parameters and buffers under their names, for Python's
/// load_state_dict), training.safetensors (all other tensors) and manifest.json (positions, sizes, CRC-32 of the
/// files). The folder is renamed to this name when everything in it is on disk. Rank 0 writes; a crash at any moment
/// leaves at most FOLDER/*.tmp-*, which is never read and goes with the next save.
///
/// One job at a time writes in a folder: from its first save on rank 0 has a lock on FOLDER/writer.lock, which goes
/// with its process. A save beside a process that is alive waits a minute for it, then fails with an error that names
/// process and machine. Several Checkpoints of one process may have one folder; what they save is written in the order
/// of their saves. Reading needs no lock. File systems without locks (Lustre mounted without them, NFS without a lock
/// service) guard nothing, which each Checkpoint says once on stderr, and NFS mounted with nolock guards within one
/// machine: there it is the program's care that two jobs have two folders.
///
/// Resuming: every rank looks into its own FOLDER (one shared by all nodes, or each node's own). The newest checkpoint
/// that any rank has and whose checksums are right wins; the rank that has it sends it to the others. With the same
/// world size the run continues bit for bit (on the CPU, and on GPUs as far as training itself is deterministic). With
/// another one, the sampler deals what is left of the epoch anew, generators are seeded afresh from the stored ones,
/// and learning rate and batch size stay as the program sets them.
///
/// Trust a checkpoint as you trust the program. The state of ZeroRedundancyOptimizer, and of optimizers that are
/// neither torch::optim's nor ours, is an archive of LibTorch's in it, and LibTorch's reader believes what it reads:
/// such an archive may hold code, and unpack to any size. Weights of strangers are for load_weights and
/// load_safetensors, which check everything.
class Checkpoint {
 public:
  /// Collective: every rank makes it at the same place. Throws Error when the folder cannot be made.
  Checkpoint(std::filesystem::path folder, ProcessGroup group, CheckpointOptions options = {});
  ~Checkpoint();  ///< waits until what this rank writes is on disk; that it failed is said on stderr alone
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  /// Sets all parts to the newest valid checkpoint and says where it was taken; {0, 0} when there is none. Collective.
  ///
  /// Throws Error, on all ranks alike, when there is none and options.must_resume asks for one, or when a part does not
  /// fit what is stored (names, shapes, dtypes, number of parameter groups, the sampler's seed); parts may be half set
  /// then.
  template <class... Parts>
  Position resume(Parts&... parts) {
    parts_ = CheckpointParts::of(parts...);
    return resume_parts(parts_);
  }

  /// Stores all parts as they are between two steps. Collective: every rank calls it after the same step. Waits for the
  /// save before it, and throws Error, on all ranks alike, when that one failed, and when there are no parts. That this
  /// one failed, for a negative step too, is thrown by the next save or wait; what a part throws is thrown at once
  /// too.
  template <class... Parts>
  void save(Position at, Parts&... parts) {
    if constexpr (sizeof...(Parts) > 0) parts_ = CheckpointParts::of(parts...);
    save_parts(at, parts_);  // with no parts: those that resume or save had last
  }

  /// save(), then waits until the checkpoint is on disk, on all ranks. The result is the exit code that asks a
  /// scheduler to start the job again: `if (worker.end_step(step).stop) return checkpoint.save_and_requeue(at);`
  template <class... Parts>
  int save_and_requeue(Position at, Parts&... parts) {
    save(at, parts...);
    return wait_and_requeue();
  }

  /// Returns when the last save is on disk; throws Error, on all ranks alike, when it failed. Collective.
  void wait();

 private:
  Position resume_parts(const CheckpointParts& parts);
  void save_parts(Position at, const CheckpointParts& parts);
  int wait_and_requeue();
  void follow_round();
  void make_boards();

  struct State;
  static void begin_writing(State& state, Position at, const CheckpointParts& parts, const Gathered& gathered,
                            std::int64_t number);
  CheckpointParts parts_;
  std::unique_ptr<State> state_;
};

}  // namespace torchup
