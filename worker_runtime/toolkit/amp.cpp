#include <ATen/autocast_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <torch/utils.h>

#include <string>
#include <torchup/amp.hpp>
#include <torchup/error.hpp>
#include <torchup/fused_optimizers.hpp>

namespace torchup {

using torch::Tensor;

Autocast::Autocast(torch::DeviceType device, Options options)
    : device_{device}, enabled_before_{at::autocast::is_autocast_enabled(device)},
      dtype_before_{at::autocast::get_autocast_dtype(device)}, cache_enabled_before_{
                                                                   at::autocast::is_autocast_cache_enabled()} {
  const torch::ScalarType dtype = options.dtype.value_or(dtype_before_);
  if (options.enabled && dtype != torch::kHalf && dtype != torch::kBFloat16)
    throw Error{std::string{"Autocast: dtype is "} + c10::toString(dtype) + "; it can be float16 or bfloat16"};
  at::autocast::set_autocast_enabled(device, options.enabled);
  at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::increment_nesting();
  at::autocast::set_autocast_cache_enabled(options.cache_enabled.value_or(cache_enabled_before_));
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, enabled_before_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
  at::autocast::set_autocast_cache_enabled(cache_enabled_before_);
}

GradScaler::GradScaler(Options options) : options_{options} {
  if (!options_.enabled) return;
  if (!(options_.growth_factor > 1)) throw Error{"GradScaler: growth_factor must be > 1"};
  if (!(options_.backoff_factor < 1)) throw Error{"GradScaler: backoff_factor must be < 1"};
}

void GradScaler::require_scale(const char* function) const {
  if (!scale_.defined())
    throw Error{std::string{"GradScaler: "} + function + " before the first scale(loss): there is no scale yet"};
}

Tensor GradScaler::scale(const Tensor& loss) {
  if (!options_.enabled) return loss;
  if (!scale_.defined()) {
    const auto scalar = torch::TensorOptions{}.device(loss.device());
    scale_ = torch::full({}, options_.init_scale, scalar.dtype(torch::kFloat));
    growth_tracker_ = torch::full({}, init_growth_tracker_, scalar.dtype(torch::kInt));
  }
  return loss * scale_.to(loss.device(), /*non_blocking=*/true);
}

std::vector<Tensor> GradScaler::check_and_unscale(torch::optim::Optimizer& optimizer, const Tensor& inverse_scale,
                                                  bool allow_fp16) const {
  const torch::NoGradGuard no_gradients;
  struct Batch {
    torch::ScalarType dtype;
    std::size_t device;  // index into `found_inf`
    std::vector<Tensor> gradients;
  };
  std::vector<Tensor> found_inf;
  std::vector<Batch> batches;
  const auto device_index = [&](const torch::Device& device) {
    for (std::size_t i = 0; i < found_inf.size(); ++i)
      if (found_inf[i].device() == device) return i;
    found_inf.push_back(torch::zeros({}, torch::TensorOptions{}.dtype(torch::kFloat).device(device)));
    return found_inf.size() - 1;
  };
  const auto batch_of = [&](const Tensor& gradient) -> Batch& {
    const std::size_t device = device_index(gradient.device());
    for (Batch& batch : batches)
      if (batch.dtype == gradient.scalar_type() && batch.device == device) return batch;
    return batches.emplace_back(gradient.scalar_type(), device, std::vector<Tensor>{});
  };
  for (auto& group : optimizer.param_groups())
    for (const Tensor& parameter : group.params()) {
      const Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      if (!allow_fp16 && gradient.scalar_type() == torch::kHalf)
        throw Error{
            "GradScaler: attempting to unscale float16 gradients; keep the parameters in float32 and use Autocast"};
      const Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
      batch_of(values).gradients.push_back(values);
    }
  for (const Batch& batch : batches) {
    Tensor& found = found_inf[batch.device];
    at::_amp_foreach_non_finite_check_and_unscale_(batch.gradients, found,
                                                   inverse_scale.to(found.device(), /*non_blocking=*/true));
  }
  return found_inf;
}

Tensor GradScaler::sum_on_scale_device(const std::vector<Tensor>& found_inf) const {
  Tensor sum = found_inf.front().to(scale_.device(), /*non_blocking=*/true);
  for (std::size_t i = 1; i < found_inf.size(); ++i)
    sum = sum + found_inf[i].to(scale_.device(), /*non_blocking=*/true);
  return sum;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  require_scale("unscale_");
  PerOptimizer& state = optimizers_[&optimizer];
  if (state.stage == Stage::unscaled)
    throw Error{"GradScaler: unscale_() has already been called on this optimizer since the last update()"};
  if (state.stage == Stage::stepped) throw Error{"GradScaler: unscale_() is being called after step()"};
  // A float32 division can be imprecise under some compile options of LibTorch; Python takes the reciprocal in float64
  // too.
  state.found_inf = check_and_unscale(optimizer, scale_.to(torch::kDouble).reciprocal().to(torch::kFloat), false);
  state.stage = Stage::unscaled;
}

void GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return;
  }
  require_scale("step");
  PerOptimizer& state = optimizers_[&optimizer];
  if (state.stage == Stage::stepped) throw Error{"GradScaler: step() has already been called since the last update()"};

  if (auto* scaled = dynamic_cast<ScaledStep*>(&optimizer)) {
    const bool unscales_itself = state.stage == Stage::ready;
    if (unscales_itself)
      state.found_inf = check_and_unscale(optimizer, torch::ones({}, scale_.options()), /*allow_fp16=*/true);
    if (state.found_inf.empty()) throw Error{"GradScaler: step(): this optimizer has no gradients"};
    struct Lent {
      ScaledStep& to;
      ~Lent() { to.grad_scale = to.found_inf = Tensor{}; }
    } lent{*scaled};
    scaled->found_inf = sum_on_scale_device(state.found_inf);
    if (unscales_itself) scaled->grad_scale = scale_;
    optimizer.step();
  } else {
    if (state.stage == Stage::ready) unscale_(optimizer);
    if (state.found_inf.empty()) throw Error{"GradScaler: step(): this optimizer has no gradients"};
    if (sum_on_scale_device(state.found_inf).item<float>() == 0) optimizer.step();
  }
  state.stage = Stage::stepped;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  require_scale("update");
  std::vector<Tensor> found_inf;
  for (const auto& [optimizer, state] : optimizers_)
    found_inf.insert(found_inf.end(), state.found_inf.begin(), state.found_inf.end());
  if (found_inf.empty()) throw Error{"GradScaler: update() without a step() or unscale_() since the last one"};
  at::_amp_update_scale_(scale_, growth_tracker_, sum_on_scale_device(found_inf), options_.growth_factor,
                         options_.backoff_factor, options_.growth_interval);
  optimizers_.clear();
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  require_scale("update");
  scale_.fill_(new_scale);
  optimizers_.clear();
}

double GradScaler::get_scale() const {
  if (!options_.enabled) return 1;
  return scale_.defined() ? scale_.item<double>() : options_.init_scale;
}

StateDict GradScaler::state_dict() const {
  if (!options_.enabled) return {};
  const int tracker = growth_tracker_.defined() ? growth_tracker_.item<int>() : init_growth_tracker_;
  const auto real = [](double value) { return torch::tensor(value, torch::kDouble); };
  const auto integer = [](int64_t value) { return torch::tensor(value, torch::kLong); };
  return {{"scale", real(get_scale())},
          {"growth_factor", real(options_.growth_factor)},
          {"backoff_factor", real(options_.backoff_factor)},
          {"growth_interval", integer(options_.growth_interval)},
          {"_growth_tracker", integer(tracker)}};
}

void GradScaler::load_state_dict(const StateDict& state) {
  if (!options_.enabled) return;
  if (state.empty())
    throw Error{"GradScaler: the state to load is empty: it was saved from a scaler that was not enabled"};
  const auto value = [&](const char* name) -> const Tensor& {
    const auto found = state.find(name);
    if (found == state.end()) throw Error{std::string{"GradScaler: the state to load has no "} + name};
    return found->second;
  };
  options_.init_scale = value("scale").item<double>();
  options_.growth_factor = value("growth_factor").item<double>();
  options_.backoff_factor = value("backoff_factor").item<double>();
  options_.growth_interval = value("growth_interval").item<int>();
  init_growth_tracker_ = value("_growth_tracker").item<int>();
  if (scale_.defined()) {
    scale_.fill_(options_.init_scale);
    growth_tracker_.fill_(init_growth_tracker_);
  }
}

}  // namespace torchup
