#pragma once

#include <ATen/core/Generator.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <torchup/checkpoint.hpp>
#include <utility>
#include <vector>

#include "worker_runtime/elastic/agreement.hpp"

namespace torchup {

/// Where a job stands, through the rounds: the parts of Elastic::run, and what is needed to go back to the last commit.
///
/// Parameters and optimizers' tensors stand where they are, for only a whole step changes them. What can be further
/// when a step is interrupted is copied at every commit: buffers, learning rates and the like, schedulers, the
/// sampler's position, random numbers.
class TrainingState {
 public:
  /// `copies`: this process may be kept, so there may be a way back.
  TrainingState(CheckpointParts parts, bool copies);

  [[nodiscard]] const CheckpointParts& parts() const { return parts_; }
  [[nodiscard]] Position position() const { return position_; }
  /// Since all ranks began alike.
  [[nodiscard]] std::int64_t commits() const { return commits_; }
  /// No step has begun since the last commit.
  [[nodiscard]] bool is_clean() const { return clean_; }
  /// It comes from nobody yet: as the program has made it.
  [[nodiscard]] bool is_fresh() const { return fresh_; }
  /// A parameter is on a GPU: what was queued there may not have ended.
  [[nodiscard]] bool on_gpu() const { return on_gpu_; }

  /// An optimizer's step begins: parameters are in between until the next commit.
  void step_begins() { clean_ = false; }
  /// One more step is done.
  void commit(Position done);
  /// Back to the last commit, but for parameters and optimizers' tensors. Gradients are dropped.
  void restore();

  /// A round begins, with a state that all agree on. `seed`: of this rank's random numbers, which are a function of it
  /// and the position from here on; without one they are what they are.
  void begin(std::optional<std::uint64_t> seed);
  /// Read on all ranks, as it stood at `position`.
  void loaded(Position position);
  /// Another rank's state is being written into this one: until `became` it is nobody's.
  void becomes() { clean_ = false; }
  void became(Position position, std::int64_t commits);

 private:
  void look_at_parts();
  void keep();
  void seed_step();

  const CheckpointParts parts_;
  const bool copies_;
  Position position_;
  std::int64_t commits_ = 0;
  bool clean_ = true;
  bool fresh_ = true;
  bool on_gpu_ = false;
  std::optional<std::uint64_t> seed_;
  std::vector<at::Generator> generators_;  ///< that programs draw from without naming them
  std::vector<torch::Tensor> buffers_;     ///< the module's

  // As at the last commit.
  std::vector<torch::Tensor> kept_buffers_;
  std::vector<std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>> kept_options_;  ///< by optimizer, group
  std::vector<StateDict> kept_others_;
  std::vector<torch::Tensor> kept_numbers_;  ///< states of the generators
  std::optional<SamplerPosition> kept_sampler_;
  std::optional<BucketLayout> kept_layout_;
};

}  // namespace torchup
