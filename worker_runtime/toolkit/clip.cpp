#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/utils.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <numeric>
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

/// Calls `work` once on each of ATen's threads, at most `limit` times, at the same time. at::parallel_for would call it
/// on one: its threads are OpenMP's, and only LibTorch is compiled with that. The loop of a tensor iterator is
/// LibTorch's own.
void on_threads(std::int64_t limit, const std::function<void()>& work) {
  const Tensor lanes = torch::empty({std::min<std::int64_t>(at::get_num_threads(), limit)}, torch::kByte);
  auto iterator = at::TensorIterator::borrowing_nullary_op(lanes);
  iterator.for_each([&](char**, const std::int64_t*, std::int64_t) { work(); }, /*grain_size=*/1);
}

/// Whether ATen takes the norm of each of `batch` in one piece on one thread, so that several threads can take one
/// each. Those that it cuts itself, it cuts by the number of threads, and the cut decides the bits.
bool taken_in_one_piece(const Batch& batch, double norm_type) {
  const auto dtype = batch.front().scalar_type();
  return batch.front().is_cpu() && norm_type == 2 && (dtype == torch::kFloat || dtype == torch::kBFloat16) &&
         std::all_of(batch.begin(), batch.end(),
                     [](const Tensor& gradient) { return gradient.is_non_overlapping_and_dense(); });
}

std::vector<Tensor> norms_of(const Batch& batch, double norm_type) {
  std::int64_t elements = 0;
  for (const Tensor& gradient : batch) elements += gradient.numel();
  if (elements <= at::internal::GRAIN_SIZE || !taken_in_one_piece(batch, norm_type))
    return at::_foreach_norm(batch, norm_type);
  // Every thread takes the largest that is left.
  std::vector<std::size_t> by_size(batch.size());
  std::iota(by_size.begin(), by_size.end(), std::size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](auto one, auto other) { return batch[one].numel() > batch[other].numel(); });
  std::vector<Tensor> norms(batch.size());
  std::atomic<std::size_t> next = 0;
  on_threads(std::ssize(batch), [&] {
    const torch::NoGradGuard no_gradients;  // a thread's own setting
    for (std::size_t turn = next++; turn < by_size.size(); turn = next++)
      norms[by_size[turn]] = at::linalg_vector_norm(batch[by_size[turn]], norm_type);
  });
  return norms;
}

/// The norm of all gradients of this process; undefined when there are none.
Tensor local_norm(const std::vector<Batch>& batches, double norm_type) {
  std::vector<Tensor> norms;
  for (const Batch& batch : batches)
    for (const Tensor& norm : norms_of(batch, norm_type))
      norms.push_back(norm.to(batches.front().front().device(), /*non_blocking=*/true));
  return norms.empty() ? Tensor{} : at::linalg_vector_norm(torch::stack(norms), norm_type);
}

void require_finite(const Tensor& norm, const ClipOptions& options) {
  if (options.error_if_nonfinite && !std::isfinite(norm.item<double>()))
    throw Error{
        "clip_grad_norm_: the norm of the gradients is not finite, so they cannot be clipped; with "
        "error_if_nonfinite = false they are scaled all the same"};
}

void scale_to(const std::vector<Batch>& batches, double max_norm, const Tensor& norm) {
  // max_norm / (norm + 1e-6), rounded as Python rounds it.
  const Tensor factor = torch::clamp_max((norm + 1e-6).reciprocal() * max_norm, 1.0);
  // On a device nobody looks at the factor: that would wait for it. On the CPU looking is free, and a factor of 1
  // changes no bit, so the pass over memory can be left out.
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

Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm, const ProcessGroup& group,
                       ClipOptions options) {
  require_norm_type(options.norm_type);
  const torch::NoGradGuard no_gradients;
  const auto batches = gradients_of(parameters);
  const auto on_group = torch::TensorOptions{}.device(group.device()).dtype(torch::kFloat);
  const Tensor mine =
      batches.empty() ? torch::zeros({}, on_group) : local_norm(batches, options.norm_type).to(on_group);
  Tensor norm;
  if (std::isinf(options.norm_type)) {
    norm = mine.clone();
    all_reduce(norm, group, ReduceOp::max);
  } else {
    // By the largest: its power, or that of a small one, may be beyond a float. One without end stays what it is: a
    // part of it would be no number, and with it what is finite, which Python scales to 0.
    Tensor unit = mine.clone();
    all_reduce(unit, group, ReduceOp::max);
    unit = torch::where((unit > 0) & unit.isfinite(), unit, torch::ones_like(unit));
    norm = (mine / unit).pow(options.norm_type);
    all_reduce(norm, group, ReduceOp::sum);
    norm = norm.pow(1 / options.norm_type) * unit;
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
