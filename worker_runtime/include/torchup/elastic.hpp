#pragma once

#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torchup/checkpoint.hpp>
#include <torchup/process_group.hpp>
#include <torchup/worker.hpp>
#include <type_traits>
#include <utility>

namespace torchup {

struct ElasticOptions {
  /// The random numbers of each step are a function of this, the rank and the position, for a newcomer too: with it a
  /// job that was disturbed ends with the bits of one that was not. Without it survivors keep their generators, and a
  /// newcomer's are fresh.
  std::optional<std::uint64_t> seed = {};
  /// Called on all ranks where nobody knows better than a checkpoint: at the first start, and when no rank with a whole
  /// state is left. Usually `[&] { return checkpoint.resume(net, optimizer, sampler, ddp); }`. It says where the state
  /// was taken; {0, 0}: there was none, and nothing has changed.
  std::function<Position()> load = {};
  /// False: ranks hold different things (ZeRO). Nothing is sent between them, and every round begins with `load`. One
  /// that finds nothing ends all ranks that have trained: they and newcomers would not be of one state.
  bool replicated = true;
};

/// Ends the program's part in a round that is over. It passes through `catch (const std::exception&)` up to
/// Elastic::run, which alone is to handle it.
struct Interrupted {
  std::string reason;
};

/// Recovery inside the process: who survives a fault keeps its process and its state, and goes on in the next round.
///
///   auto group = torchup::init_process_group();
///   Net net;                                                       // and all that is made once
///   torchup::DistributedDataParallel ddp{net, group};
///   …
///   torchup::Elastic elastic{worker, group, {.seed = 42, .load = [&] { return checkpoint.resume(net, …); }}};
///   return elastic.run([&](torchup::Position at) {                 // again in every round
///     for (; at.epoch < epochs; ++at.epoch) {
///       sampler.set_epoch(at.epoch);
///       for (auto& batch : torchup::to_device(*loader, group.device(), sampler)) {
///         optimizer.zero_grad();
///         loss(ddp(batch.data), batch.target).backward();
///         elastic.step(optimizer);
///         ++at.step;
///         if (elastic.commit(at).stop) return checkpoint.save_and_requeue(at);
///       }
///     }
///     return 0;
///   }, net, optimizer, sampler, ddp, scheduler);                   // what must survive: the parts of Checkpoint
///
/// Under torchup's agent (a channel to it comes with every worker) a round that ends, for a worker that died, raised or
/// was stopped, or for a node that came or went, ends in all survivors at once: their collectives throw. They drop what
/// was half done, go back to their last commit, wait for their place in the next round, meet there, and take the state
/// of the rank that is furthest where they have another. `group` then has another rank, size, store and backend, in all
/// of its copies: DDP, the sampler and Checkpoint follow. A newcomer is started as ever, and gets the state inside of
/// run. Under torchrun, srun or alone the same program runs without recovery.
///
/// What the program sees to:
/// - What must survive is in the parts, or made anew in the function. Parts and group outlive run.
/// - A step's collectives come before the optimizers' steps, which are taken by `step`; `commit` comes after them.
/// - Replicas are equal, as DDP makes them. (ZeRO: `.replicated = false`; the optimizer itself is made in `load`.)
/// - Between init_process_group and run it does no collectives of its own and makes no groups: to a newcomer nobody
///   would answer. DistributedDataParallel, Checkpoint, seed_everything and ZeroFirst see to that themselves. Groups
///   that are made in the function end with the round.
/// - A data loader with worker threads is made in the function: LibTorch's begins no pass while one is under way.
/// - The learning rate and the share of each rank in a batch are its own affair: the function sees the new
/// group.size().
/// - With nccl nothing of this has been tried.
///
/// A part with `differs_by_rank` stays as it is in a survivor; a newcomer gets the one of the rank whose state it
/// takes. BatchNorm's running statistics differ by rank until the next forward pass sends rank 0's: those of a rank 0
/// that died are lost, and the next rank 0's are everybody's.
class Elastic {
 public:
  /// `worker` outlives it. One rendezvous by the environment ("env://", without rank or world size of the program's
  /// own) can be left and joined again; with another init_method the program runs without recovery.
  Elastic(Worker& worker, ProcessGroup group, ElasticOptions options = {});
  ~Elastic();
  Elastic(const Elastic&) = delete;
  Elastic& operator=(const Elastic&) = delete;

  /// Brings all ranks to one state, calls `train` with the position of that state, in every round anew, and returns its
  /// result when all ranks are done. The group stays connected; from here on this worker ends and starts as any other,
  /// in further calls too: a newcomer could not come to where they are.
  ///
  /// An exception that leaves `train` is a consequence if the round is over; the agent says so within a quarter of a
  /// second where that is not known yet. Otherwise it leaves run: this worker is the one to be replaced, all others
  /// stay. A worker that is kept twice in a row without a commit in between ends as any other, by the agent.
  ///
  /// Throws Error, besides, when ranks have no whole state and there is no `load`, when the model is not the same on
  /// all of them, when some ranks are Python processes, when the channel ends while a place is waited for, when it is
  /// called inside of itself, and for what it cannot do by what it was given.
  template <class Train, class... Parts>
  requires std::is_invocable_r_v<int, Train&, Position>
  int run(Train&& train, Parts&... parts) { return run_parts(std::ref(train), CheckpointParts::of(parts...)); }

  /// optimizer.step(), through the gate: a step begins only on whole gradients, in a round that goes on. On a GPU it
  /// waits for what was queued there. Throws Interrupted.
  torch::Tensor step(torch::optim::Optimizer& optimizer) {
    begin_step();
    return optimizer.step();
  }
  /// Any other way to take it: `elastic.step([&] { scaler.step(optimizer); })`.
  template <std::invocable Step>
  decltype(auto) step(Step&& take) {
    begin_step();
    return std::forward<Step>(take)();
  }

  /// One more step is done, on all ranks, and this is where that leaves the job. Keeps what is needed to come back here
  /// (not parameters and optimizers' tensors), then does what worker.end_step(done.step) does. Throws Interrupted,
  /// with the step counted, when the round is over.
  StepEnd commit(Position done);

 private:
  int run_parts(const std::function<int(Position)>& train, CheckpointParts parts);
  void begin_step();

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace torchup
