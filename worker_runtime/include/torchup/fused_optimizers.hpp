#pragma once

#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <tuple>
#include <vector>

namespace torchup {

/// An optimizer whose step undoes the scaling of the loss, and skips itself when a gradient is not finite, without
/// asking the device for the answer. A GradScaler sets both before step() and clears them after.
class ScaledStep {
 public:
  torch::Tensor grad_scale;  ///< float32 scalar that step() divides the gradients by; undefined: they are unscaled
  torch::Tensor found_inf;   ///< float32 scalar; other than 0: step() changes nothing; undefined: it always steps

 protected:
  ~ScaledStep() = default;
};

struct FusedSGDOptions : torch::optim::OptimizerCloneableOptions<FusedSGDOptions> {
  FusedSGDOptions(double lr = 1e-3) : lr_{lr} {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, momentum) = 0;
  TORCH_ARG(double, dampening) = 0;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, nesterov) = false;
  TORCH_ARG(bool, maximize) = false;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr_; }
  void set_lr(double lr) override { lr_ = lr; }
};

struct FusedAdamOptions : torch::optim::OptimizerCloneableOptions<FusedAdamOptions> {
  using Betas = std::tuple<double, double>;
  FusedAdamOptions(double lr = 1e-3) : lr_{lr} {}
  TORCH_ARG(double, lr);
  TORCH_ARG(Betas, betas) = {0.9, 0.999};
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, amsgrad) = false;
  TORCH_ARG(bool, maximize) = false;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr_; }
  void set_lr(double lr) override { lr_ = lr; }
};

/// FusedAdam's options with AdamW's default weight decay.
struct FusedAdamWOptions : FusedAdamOptions {
  FusedAdamWOptions(double lr = 1e-3) : FusedAdamOptions{lr} { weight_decay(1e-2); }
};

/// State of one parameter in FusedSGD.
struct FusedSGDState : torch::optim::OptimizerCloneableParamState<FusedSGDState> {
  torch::Tensor momentum_buffer;  ///< the parameter's sizes and dtype

  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// State of one parameter in FusedAdam and FusedAdamW.
struct FusedAdamState : torch::optim::OptimizerCloneableParamState<FusedAdamState> {
  torch::Tensor step;     ///< float32 scalar on the parameter's device: the number of steps taken
  torch::Tensor exp_avg;  ///< the parameter's sizes and dtype, like the next two
  torch::Tensor exp_avg_sq;
  torch::Tensor max_exp_avg_sq;  ///< only with amsgrad

  /// Also reads what torch::optim::Adam and AdamW wrote.
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// torch.optim.SGD(..., fused=True): one pass over memory for all parameters together. On the CPU the parameters are
/// equal to Python's bit by bit. Dense parameters of float16, bfloat16, float32 or float64; parameters without a
/// gradient stay as they are.
///
/// With momentum and half-precision parameters torch::optim::SGD is a trap: it rounds the momentum to their dtype
/// first, and so has other bits than any SGD of Python's. This one has those of fused=True there too.
class FusedSGD : public torch::optim::Optimizer, public ScaledStep {
 public:
  explicit FusedSGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedSGDOptions defaults = {});
  explicit FusedSGD(std::vector<torch::Tensor> parameters, FusedSGDOptions defaults = {})
      : FusedSGD{{torch::optim::OptimizerParamGroup{std::move(parameters)}}, std::move(defaults)} {}

  /// A group with options of its own uses just these; one without uses the defaults.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  torch::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

/// torch.optim.Adam(..., fused=True), under the same terms. Weight decay is added to the gradient.
class FusedAdam : public torch::optim::Optimizer, public ScaledStep {
 public:
  explicit FusedAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedAdamOptions defaults = {});
  explicit FusedAdam(std::vector<torch::Tensor> parameters, FusedAdamOptions defaults = {})
      : FusedAdam{{torch::optim::OptimizerParamGroup{std::move(parameters)}}, std::move(defaults)} {}

  /// A group with options of its own uses just these; one without uses the defaults.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  torch::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Also reads what torch::optim::Adam or AdamW saved; options that those lack get their defaults.
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  bool decoupled_weight_decay_ = false;
};

/// torch.optim.AdamW(..., fused=True), under the same terms. Weight decay shrinks the parameter itself.
class FusedAdamW : public FusedAdam {
 public:
  explicit FusedAdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedAdamWOptions defaults = {})
      : FusedAdam{groups, std::move(defaults)} {
    decoupled_weight_decay_ = true;
  }
  explicit FusedAdamW(std::vector<torch::Tensor> parameters, FusedAdamWOptions defaults = {})
      : FusedAdamW{{torch::optim::OptimizerParamGroup{std::move(parameters)}}, std::move(defaults)} {}
};

}  // namespace torchup
