#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <optional>
#include <torchup/state_dict.hpp>
#include <utility>
#include <vector>

namespace torchup {

/// Mixed precision while it lives, on this thread: torch.autocast as an object with a scope.
///
/// Operations that gain from it run in `dtype`, those that need the range in float32; parameters and gradients keep
/// their own type. Put the forward pass and the loss in its scope, backward() outside. Guards nest; with enabled =
/// false one switches off a part. At the end of the outermost the cached casts of the parameters go.
class Autocast {
 public:
  struct Options {
    /// float16 or bfloat16; by default what LibTorch uses for the device: float16 on CUDA, bfloat16 on the CPU.
    std::optional<torch::ScalarType> dtype{};
    bool enabled = true;
    /// Cast a parameter once per scope, not once per use. Default: as it is.
    std::optional<bool> cache_enabled{};
  };
  explicit Autocast(torch::DeviceType device) : Autocast{device, Options{}} {}
  /// Throws Error for another dtype.
  Autocast(torch::DeviceType device, Options options);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  torch::DeviceType device_;
  bool enabled_before_;
  torch::ScalarType dtype_before_;
  bool cache_enabled_before_;
};

/// Keeps float16 gradients in range: torch.amp.GradScaler.
///
///     scaler.scale(loss).backward();
///     scaler.unscale_(optimizer);            // only needed to clip
///     clip_grad_norm_(ddp.parameters(), 1.0);
///     scaler.step(optimizer);                // does not step when a gradient is infinite or NaN
///     scaler.update();
///
/// All arithmetic is on the scale's device; with an optimizer that is a ScaledStep (FusedSGD, FusedAdam, FusedAdamW,
/// ZeroRedundancyOptimizer around one of them) nothing waits for the device. Gradients must be reduced before unscale_:
/// DDP has done that when backward() returns, and so all ranks decide alike. bfloat16 needs no scaler.
class GradScaler {
 public:
  struct Options {
    double init_scale = 65536;
    double growth_factor = 2;     ///< > 1
    double backoff_factor = 0.5;  ///< < 1
    int growth_interval = 2000;   ///< steps without an infinity before the scale grows
    bool enabled = true;          ///< false: scale() and step() pass through, the rest does nothing
  };
  GradScaler() : GradScaler{Options{}} {}
  explicit GradScaler(Options options);

  /// `loss` times the scale. The first call decides where the scale lives.
  torch::Tensor scale(const torch::Tensor& loss);

  /// Divides the optimizer's gradients by the scale, in place. At most once between two update()s, and before step().
  /// Throws Error for float16 gradients: keep the parameters in float32.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// optimizer.step(), unless a gradient is infinite or NaN; unscales first where unscale_ has not.
  void step(torch::optim::Optimizer& optimizer);

  /// Adapts the scale to what the steps since the last update() met. Once per iteration, after all step()s.
  void update();
  /// Sets the scale instead.
  void update(double new_scale);

  double get_scale() const;  ///< waits for the device; 1 when not enabled
  bool is_enabled() const { return options_.enabled; }

  /// Python's names: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker; empty when not enabled.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct PerOptimizer {
    Stage stage = Stage::ready;
    std::vector<torch::Tensor> found_inf;  ///< one float32 scalar per device of the gradients
  };
  void require_scale(const char* function) const;
  std::vector<torch::Tensor> check_and_unscale(torch::optim::Optimizer& optimizer, const torch::Tensor& inverse_scale,
                                               bool allow_fp16) const;
  torch::Tensor sum_on_scale_device(const std::vector<torch::Tensor>& found_inf) const;

  Options options_;
  torch::Tensor scale_;           ///< float32 scalar; undefined before the first scale()
  torch::Tensor growth_tracker_;  ///< int32 scalar: steps without an infinity so far
  int init_growth_tracker_ = 0;
  std::map<const torch::optim::Optimizer*, PerOptimizer> optimizers_;
};

}  // namespace torchup
