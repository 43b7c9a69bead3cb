#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/utils.h>

#include <cmath>
#include <torchup/clip.hpp>
#include <torchup/collectives.hpp>
#include <torchup/error.hpp>

namespace torchup {
namespace {

using torch::Tensor;

/// Gradients of one device and dtype.
using Batch = std::vector<Tensor>;

/// By device and dtype, in the order in which these first appear; the norm of norms is taken in this order.
std::vector<Batch> gradients_of(const std::vector<Tensor>& parameters) {
  std::vector<Batch> batches;
  for (const Tensor& parameter : parameters) {
    const Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    auto batch = std::find_if(batches.begin(), batches.end(), [&](const Batch& known) {
      return known.front().device() == gradient.device() && known.front().scalar_type() == gradient.scalar_type();
    });
    if (batch == batches.end()) batch = batches.emplace(batches.end());
    batch->push_back(gradient);
  }
  return batches;
}

/// The norm of all gradients of this process; undefined when there are none.
Tensor local_norm(const std::vector<Batch>& batches, double norm_type) {
  std::vector<Tensor> norms;
  for (const Batch& batch : batches)
    for (const Tensor& norm : at::_foreach_norm(batch, norm_type))
      norms.push_back(norm.to(batches.front().front().device(), /*non_blocking=*/true));
  return norms.empty() ? Tensor{} : at::linalg_vector_norm(torch::stack(norms), norm_type);
}

void require_finite(const Tensor& norm, const ClipOptions& options) {
  if (options.error_if_nonfinite && !std::isfinite(norm.item<double>()))
    throw Error{"clip_grad_norm_: the norm of the gradients is not finite, so they cannot be clipped; with "
                "error_if_nonfinite = false they are scaled all the same"};
}

void scale_to(const std::vector<Batch>& batches, double max_norm, const Tensor& norm) {
  // max_norm / (norm + 1e-6), rounded as Python rounds it.
  const Tensor factor = torch::clamp_max((norm + 1e-6).reciprocal() * max_norm, 1.0);
  // On a device nobody looks at the factor: that would wait for it. On the CPU looking is free, and a factor of 1 changes
  // no bit, so the pass over memory can be left out.
  if (factor.is_cpu() && factor.item<double>() == 1) return;
  for (const Batch& batch : batches) at::_foreach_mul_(batch, factor.to(batch.front().device(), /*non_blocking=*/true));
}

void require_norm_type(double norm_type) {
  if (!(norm_type > 0)) throw Error{"clip_grad_norm_: norm_type must be > 0"};
}

}  // namespace

Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm, ClipOptions options) {
  require_norm_type(options.norm_type);
  const torch::NoGradGuard no_gradients;
  const auto batches = gradients_of(parameters);
  if (batches.empty()) return torch::zeros({});
  const Tensor norm = local_norm(batches, options.norm_type);
  require_finite(norm, options);
  scale_to(batches, max_norm, norm);
  return norm;
}

Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm, const ProcessGroup& group, ClipOptions options) {
  require_norm_type(options.norm_type);
  const torch::NoGradGuard no_gradients;
  const auto batches = gradients_of(parameters);
  const auto on_group = torch::TensorOptions{}.device(group.device()).dtype(torch::kFloat);
  const Tensor mine = batches.empty() ? torch::zeros({}, on_group) : local_norm(batches, options.norm_type).to(on_group);
  Tensor norm;
  if (std::isinf(options.norm_type)) {
    norm = mine.clone();
    all_reduce(norm, group, ReduceOp::max);
  } else {
    norm = mine.pow(options.norm_type);
    all_reduce(norm, group, ReduceOp::sum);
    norm = norm.pow(1 / options.norm_type);
  }
  require_finite(norm, options);
  scale_to(batches, max_norm, norm);
  return norm;
}

void clip_grad_value_(const std::vector<Tensor>& parameters, double limit) {
  const torch::NoGradGuard no_gradients;
  for (const Batch& batch : gradients_of(parameters)) {
    at::_foreach_clamp_min_(batch, -limit);
    at::_foreach_clamp_max_(batch, limit);
  }
}

}  // namespace torchup
