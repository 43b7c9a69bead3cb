#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <string>
#include <torchup/process_group.hpp>
#include <vector>

namespace torchup {

/// BatchNorm over the batch of all ranks: torch.nn.SyncBatchNorm.
///
/// Input (N, C, ...); N may differ by rank and may be 0, as long as it is not 0 everywhere. In training with more than
/// one rank, mean and variance are those of all ranks' values together, in the backward pass too, and every rank
/// computes the same running statistics. In evaluation, alone, or without a group it is an ordinary BatchNorm. Every
/// rank must call it the same number of times. Parameters and buffers have BatchNorm's names. On CUDA it runs on the
/// kernels that Python uses; Python has no CPU form, ours agrees with one BatchNorm over the whole batch within
/// rounding (1e-6).
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  explicit SyncBatchNormImpl(int64_t features) : SyncBatchNormImpl{torch::nn::BatchNormOptions{features}} {}
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                             std::optional<ProcessGroup> group = std::nullopt);
  /// Shares the parameters and buffers of `other`, and takes its options and training flag.
  template <size_t D, class Derived>
  SyncBatchNormImpl(const torch::nn::BatchNormImplBase<D, Derived>& other, ProcessGroup group)
      : options{other.options}, group_{std::move(group)} {
    adopt({other.weight, other.bias, other.running_mean, other.running_var, other.num_batches_tracked});
    train(other.is_training());
  }

  torch::Tensor forward(const torch::Tensor& input);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  const std::optional<ProcessGroup>& group() const { return group_; }
  void set_group(ProcessGroup group) { group_ = std::move(group); }

  torch::nn::BatchNormOptions options;
  torch::Tensor weight, bias;                                    ///< C numbers; undefined unless options.affine()
  torch::Tensor running_mean, running_var, num_batches_tracked;  ///< undefined unless options.track_running_stats()

 private:
  struct Tensors {
    torch::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
  };
  void adopt(Tensors tensors);

  std::optional<ProcessGroup> group_;
};
TORCH_MODULE(SyncBatchNorm);

/// What convert_sync_batchnorm did, by the modules' names.
struct SyncBatchNormConversion {
  std::vector<std::string> converted;
  std::vector<std::string> left_alone;  ///< BatchNorms that could not be replaced
};

/// Makes the BatchNorms in `model` synchronise over `group`. Before DDP.
///
/// A BatchNorm1d, 2d or 3d inside a Sequential, ModuleList or ModuleDict is replaced by a SyncBatchNorm with the same
/// parameters, buffers and settings. A SyncBatchNorm without a group, wherever it is, gets this one. A BatchNorm that
/// is a member of a module of yours cannot be replaced in C++ (forward() calls the member by its type): declare such a
/// member as torchup::SyncBatchNorm, which is an ordinary BatchNorm until it has a group. Those that were left alone
/// are returned, and warned of.
SyncBatchNormConversion convert_sync_batchnorm(torch::nn::Module& model, const ProcessGroup& group);

}  // namespace torchup
