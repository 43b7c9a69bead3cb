#include <fmt/format.h>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <algorithm>
#include <torchup/error.hpp>
#include <torchup/fused_optimizers.hpp>

namespace torchup {
namespace {

using torch::Tensor;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

void require(bool holds, const char* optimizer, const char* what, double value) {
  if (!holds) throw Error{fmt::format("{}: {} cannot be {}", optimizer, what, value)};
}

template <class T>
void read_if_there(InputArchive& archive, const std::string& name, T& value) {
  if (c10::IValue found; archive.try_read(name, found)) value = found.to<T>();
}

void write_if_defined(OutputArchive& archive, const std::string& name, const Tensor& tensor) {
  if (tensor.defined()) archive.write(name, c10::IValue{tensor});
}

/// Parameters of one device and dtype, with what the kernel wants beside each: all lists have one length, or none.
struct FusedBatch {
  std::vector<Tensor> parameters, gradients;
  std::vector<Tensor> first, second, third, steps;
};

/// Batches in the order in which their kind of parameter first appears.
class Batches {
 public:
  FusedBatch& of(const Tensor& parameter, bool fresh = false) {
    const Key key{parameter.device(), parameter.scalar_type(), fresh};
    for (auto& [known, batch] : batches_)
      if (known == key) return batch;
    return batches_.emplace_back(key, FusedBatch{}).second;
  }
  auto begin() const { return batches_.begin(); }
  auto end() const { return batches_.end(); }

 private:
  using Key = std::tuple<torch::Device, torch::ScalarType, bool>;
  std::vector<std::pair<Key, FusedBatch>> batches_;
};

/// The gradient in the parameter's layout: the kernels walk through memory and look at no strides. Autograd makes it
/// so; one that somebody else has set is copied.
Tensor gradient_of(const Tensor& parameter, const char* optimizer) {
  const Tensor& gradient = parameter.grad();
  if (!gradient.defined()) return gradient;
  if (gradient.layout() != torch::kStrided)
    throw Error{std::string{optimizer} + ": a gradient is sparse; the fused kernels take dense ones"};
  if (!parameter.is_floating_point())
    throw Error{std::string{optimizer} + ": a parameter is " + std::string{c10::toString(parameter.scalar_type())} +
                "; the fused kernels take real floating-point ones"};
  if (!parameter.is_non_overlapping_and_dense())
    throw Error{
        std::string{optimizer} +
        ": a parameter is a part of another tensor, with gaps between its elements; the fused kernels take dense "
        "ones (parameter.clone())"};
  return gradient.strides() == parameter.strides() ? gradient : torch::empty_like(parameter).copy_(gradient);
}

std::optional<Tensor> on(const Tensor& scalar, const torch::Device& device) {
  if (!scalar.defined()) return std::nullopt;
  return scalar.to(device, /*non_blocking=*/true);
}

Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) return {};
  const torch::AutoGradMode with_gradients{true};
  return closure();
}

/// LibTorch's add_param_group replaces options of a type that it does not know by the optimizer's defaults (2.15).
void restore_options(torch::optim::OptimizerParamGroup& added, const torch::optim::OptimizerParamGroup& given) {
  if (given.has_options()) added.set_options(given.options().clone());
}

/// Whether the fused kernel keeps the momentum of `dtype` on the CPU: torch 2.11's writes half-precision ones back
/// wrongly.
bool keeps_momentum(torch::ScalarType dtype) {
  const std::vector<Tensor> parameter{torch::zeros({32}, dtype)}, gradient{torch::ones({32}, dtype)},
      buffer{torch::zeros({32}, dtype)};
  for (const bool first : {true, false})
    at::_fused_sgd_(parameter, gradient, buffer, /*weight_decay=*/0, /*momentum=*/1, /*lr=*/1, /*dampening=*/0,
                    /*nesterov=*/false,
                    /*maximize=*/false, first);
  return buffer[0].eq(2).all().item<bool>();
}

void require_momentum_kept(const Tensor& parameter) {
  if (!parameter.is_cpu()) return;
  static const bool bfloat16_kept = keeps_momentum(torch::kBFloat16), half_kept = keeps_momentum(torch::kHalf);
  const auto dtype = parameter.scalar_type();
  if ((dtype == torch::kBFloat16 && !bfloat16_kept) || (dtype == torch::kHalf && !half_kept))
    throw Error{
        "FusedSGD: the kernel of torch " TORCH_VERSION " loses the momentum of " + std::string{c10::toString(dtype)} +
        " parameters on the CPU (Python's fused=True too); take torch::optim::SGD, float parameters, or a newer torch"};
}

template <class State>
State& state_of(torch::optim::Optimizer& optimizer, const Tensor& parameter) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!slot) slot = std::make_unique<State>();
  return static_cast<State&>(*slot);
}

}  // namespace

void FusedSGDOptions::serialize(OutputArchive& archive) const {
  archive.write("lr", lr_);
  archive.write("momentum", momentum_);
  archive.write("dampening", dampening_);
  archive.write("weight_decay", weight_decay_);
  archive.write("nesterov", nesterov_);
  archive.write("maximize", maximize_);
}

void FusedSGDOptions::serialize(InputArchive& archive) {
  read_if_there(archive, "lr", lr_);
  read_if_there(archive, "momentum", momentum_);
  read_if_there(archive, "dampening", dampening_);
  read_if_there(archive, "weight_decay", weight_decay_);
  read_if_there(archive, "nesterov", nesterov_);
  read_if_there(archive, "maximize", maximize_);
}

void FusedAdamOptions::serialize(OutputArchive& archive) const {
  archive.write("lr", lr_);
  archive.write("betas", betas_);
  archive.write("eps", eps_);
  archive.write("weight_decay", weight_decay_);
  archive.write("amsgrad", amsgrad_);
  archive.write("maximize", maximize_);
}

void FusedAdamOptions::serialize(InputArchive& archive) {
  read_if_there(archive, "lr", lr_);
  read_if_there(archive, "betas", betas_);
  read_if_there(archive, "eps", eps_);
  read_if_there(archive, "weight_decay", weight_decay_);
  read_if_there(archive, "amsgrad", amsgrad_);
  read_if_there(archive, "maximize", maximize_);
}

void FusedSGDState::serialize(OutputArchive& archive) const {
  write_if_defined(archive, "momentum_buffer", momentum_buffer);
}

void FusedSGDState::serialize(InputArchive& archive) { read_if_there(archive, "momentum_buffer", momentum_buffer); }

void FusedAdamState::serialize(OutputArchive& archive) const {
  write_if_defined(archive, "step", step);
  write_if_defined(archive, "exp_avg", exp_avg);
  write_if_defined(archive, "exp_avg_sq", exp_avg_sq);
  write_if_defined(archive, "max_exp_avg_sq", max_exp_avg_sq);
}

void FusedAdamState::serialize(InputArchive& archive) {
  read_if_there(archive, "exp_avg", exp_avg);
  read_if_there(archive, "exp_avg_sq", exp_avg_sq);
  read_if_there(archive, "max_exp_avg_sq", max_exp_avg_sq);
  if (c10::IValue found; archive.try_read("step", found)) {
    // torch::optim keeps an integer.
    step = found.isTensor()
               ? found.toTensor()
               : torch::full({}, static_cast<double>(found.toInt()), exp_avg.options().dtype(torch::kFloat));
  }
}

FusedSGD::FusedSGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedSGDOptions defaults)
    : Optimizer{groups, std::make_unique<FusedSGDOptions>(defaults)} {
  for (std::size_t i = 0; i < groups.size(); ++i) restore_options(param_groups_[i], groups[i]);
  require(defaults.lr() >= 0, "FusedSGD", "lr", defaults.lr());
  require(defaults.momentum() >= 0, "FusedSGD", "momentum", defaults.momentum());
  require(defaults.weight_decay() >= 0, "FusedSGD", "weight_decay", defaults.weight_decay());
  if (defaults.nesterov() && (defaults.momentum() <= 0 || defaults.dampening() != 0))
    throw Error{"FusedSGD: nesterov needs a momentum and zero dampening"};
}

void FusedSGD::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  Optimizer::add_param_group(group);
  restore_options(param_groups_.back(), group);
}

Tensor FusedSGD::step(LossClosure closure) {
  const torch::NoGradGuard no_gradients;
  const Tensor loss = loss_of(closure);
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const FusedSGDOptions&>(group.options());
    const bool with_momentum = options.momentum() != 0;
    Batches batches;
    for (const Tensor& parameter : group.params()) {
      const Tensor gradient = gradient_of(parameter, "FusedSGD");
      if (!gradient.defined()) continue;
      if (with_momentum) require_momentum_kept(parameter);
      Tensor* buffer = with_momentum ? &state_of<FusedSGDState>(*this, parameter).momentum_buffer : nullptr;
      const bool first_time = buffer && !buffer->defined();
      // Zeros, not uninitialised memory as in Python: a first step that the scaler skips must leave a usable buffer.
      if (first_time) *buffer = torch::zeros_like(gradient);
      FusedBatch& batch = batches.of(parameter, first_time);
      batch.parameters.push_back(parameter);
      batch.gradients.push_back(gradient);
      if (buffer) batch.first.push_back(*buffer);
    }
    for (const auto& [key, batch] : batches) {
      const auto& [device, dtype, first_time] = key;
      at::_fused_sgd_(batch.parameters, batch.gradients, batch.first, options.weight_decay(), options.momentum(),
                      options.lr(), options.dampening(), options.nesterov(), options.maximize(), first_time,
                      on(grad_scale, device), on(found_inf, device));
    }
  }
  return loss;
}

void FusedSGD::save(OutputArchive& archive) const {
  torch::optim::serialize<FusedSGDState, FusedSGDOptions>(archive, *this);
}

void FusedSGD::load(InputArchive& archive) { torch::optim::serialize<FusedSGDState, FusedSGDOptions>(archive, *this); }

FusedAdam::FusedAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups, FusedAdamOptions defaults)
    : Optimizer{groups, std::make_unique<FusedAdamOptions>(defaults)} {
  for (std::size_t i = 0; i < groups.size(); ++i) restore_options(param_groups_[i], groups[i]);
  const auto [beta1, beta2] = defaults.betas();
  require(defaults.lr() >= 0, "FusedAdam", "lr", defaults.lr());
  require(defaults.eps() >= 0, "FusedAdam", "eps", defaults.eps());
  require(0 <= beta1 && beta1 < 1, "FusedAdam", "the first beta", beta1);
  require(0 <= beta2 && beta2 < 1, "FusedAdam", "the second beta", beta2);
  require(defaults.weight_decay() >= 0, "FusedAdam", "weight_decay", defaults.weight_decay());
}

void FusedAdam::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  Optimizer::add_param_group(group);
  restore_options(param_groups_.back(), group);
}

Tensor FusedAdam::step(LossClosure closure) {
  const torch::NoGradGuard no_gradients;
  const Tensor loss = loss_of(closure);
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const FusedAdamOptions&>(group.options());
    Batches batches;
    for (const Tensor& parameter : group.params()) {
      const Tensor gradient = gradient_of(parameter, "FusedAdam");
      if (!gradient.defined()) continue;
      auto& state = state_of<FusedAdamState>(*this, parameter);
      if (!state.step.defined()) {
        state.step = torch::zeros({}, parameter.options().dtype(torch::kFloat).requires_grad(false));
        state.exp_avg = torch::zeros_like(parameter, torch::MemoryFormat::Preserve);
        state.exp_avg_sq = torch::zeros_like(parameter, torch::MemoryFormat::Preserve);
      }
      if (options.amsgrad() && !state.max_exp_avg_sq.defined())
        state.max_exp_avg_sq = torch::zeros_like(parameter, torch::MemoryFormat::Preserve);
      FusedBatch& batch = batches.of(parameter);
      batch.parameters.push_back(parameter);
      batch.gradients.push_back(gradient);
      batch.first.push_back(state.exp_avg);
      batch.second.push_back(state.exp_avg_sq);
      if (options.amsgrad()) batch.third.push_back(state.max_exp_avg_sq);
      batch.steps.push_back(state.step);
    }
    const auto [beta1, beta2] = options.betas();
    for (const auto& [key, batch] : batches) {
      const torch::Device device = std::get<torch::Device>(key);
      at::_foreach_add_(batch.steps, 1);
      const auto kernel = decoupled_weight_decay_ ? &at::_ops::_fused_adamw_::call : &at::_ops::_fused_adam_::call;
      kernel(batch.parameters, batch.gradients, batch.first, batch.second, batch.third, batch.steps, options.lr(),
             beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad(), options.maximize(),
             on(grad_scale, device), on(found_inf, device));
      // A step that the kernel skipped does not count.
      if (found_inf.defined())
        at::_foreach_sub_(batch.steps, std::vector<Tensor>(batch.steps.size(), *on(found_inf, device)));
    }
  }
  return loss;
}

void FusedAdam::save(OutputArchive& archive) const {
  torch::optim::serialize<FusedAdamState, FusedAdamOptions>(archive, *this);
}

void FusedAdam::load(InputArchive& archive) {
  torch::optim::serialize<FusedAdamState, FusedAdamOptions>(archive, *this);
}

}  // namespace torchup
