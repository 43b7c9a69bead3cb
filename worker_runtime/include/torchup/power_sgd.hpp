#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <torchup/comm_hook.hpp>
#include <torchup/state_dict.hpp>

namespace torchup {

/// Names and defaults of torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.PowerSGDState.
struct PowerSGDOptions {
  int64_t matrix_approximation_rank = 1;       ///< >= 1; higher: more exact, more bytes
  int64_t start_powerSGD_iter = 1000;          ///< plain all-reduce before; > 1 with error feedback or warm start
  double min_compression_rate = 2;             ///< a gradient that would shrink by less goes uncompressed
  bool use_error_feedback = true;              ///< what compression lost is added to the next step's gradient
  bool warm_start = true;                      ///< begin with the last step's factors
  double orthogonalization_epsilon = 0;        ///< with 0, a gradient that is 0 everywhere becomes NaN: take 1e-8 then
  std::uint32_t random_seed = 0;               ///< the same on all ranks
  bool batch_tensors_with_same_shape = false;  ///< one matrix product for all gradients of a shape: faster on GPUs
};

/// Sends gradients as products of two thin matrices: PowerSGD. Not exact; for slow networks.
///
///     torchup::PowerSGD power_sgd{group, {.matrix_approximation_rank = 2}};
///     ddp.register_comm_hook(power_sgd.hook());
///
/// The bits of Python's powerSGD_hook on the CPU (random numbers included), except that the reductions of several
/// buckets are issued in bucket order on all ranks. The iterations before start_powerSGD_iter must be enough for DDP to
/// rebuild its buckets. Memory: one copy of the gradients for the error feedback.
class PowerSGD {
 public:
  /// Throws Error when the options contradict each other.
  PowerSGD(ProcessGroup group, PowerSGDOptions options = {});

  CommHook hook() const;

  /// Elements that went in and out since the beginning.
  struct Statistics {
    int64_t before = 0, after = 0;
  };
  Statistics statistics() const;

  /// This rank's own: the error feedback differs by rank, and a Checkpoint holds every rank's. Between two steps. What
  /// another rank or another world size left behind is loaded without its error feedback, which is no error of ours.
  static constexpr bool differs_by_rank = true;
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace torchup
