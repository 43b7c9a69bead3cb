#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <torchup/state_dict.hpp>
#include <variant>
#include <vector>

namespace torchup {

// Schedules of the learning rate, as values: names, defaults and numbers are those of torch.optim.lr_scheduler, equal
// to the last bit. Steps count calls of LrScheduler::step(), be they epochs or batches; step 0 is the construction.

/// Times gamma every step_size steps.
struct StepLR {
  int64_t step_size;
  double gamma = 0.1;
};

/// Times gamma at each milestone (twice at one that is listed twice).
struct MultiStepLR {
  std::vector<int64_t> milestones;
  double gamma = 0.1;
};

/// From start_factor to end_factor of the initial rate in total_iters steps: a warm-up.
struct LinearLR {
  double start_factor = 1.0 / 3;  ///< 0 < start_factor <= 1
  double end_factor = 1.0;        ///< 0 .. 1
  int64_t total_iters = 5;
};

/// Down to eta_min along half a cosine in t_max steps, and up again.
struct CosineAnnealingLR {
  int64_t t_max;
  double eta_min = 0;
};

/// Up from max_lr / div_factor to max_lr and down to max_lr / (div_factor * final_div_factor), once, in total_steps
/// steps; momentum (the first beta) goes the other way.
struct OneCycleLR {
  enum class Anneal { cos, linear };
  std::vector<double> max_lr;  ///< one for all parameter groups, or one each
  int64_t total_steps;         ///< step() may be called total_steps times
  double pct_start = 0.3;      ///< part of the steps that go up; 1: step() may be called once less
  Anneal anneal_strategy = Anneal::cos;
  bool cycle_momentum = true;  ///< needs an optimizer with momentum or betas
  std::vector<double> base_momentum{0.85};
  std::vector<double> max_momentum{0.95};
  double div_factor = 25;
  double final_div_factor = 1e4;
  bool three_phase = false;  ///< down as long as up, then to the end
};

struct ChainedScheduler;
struct SequentialLR;
using Schedule =
    std::variant<StepLR, MultiStepLR, LinearLR, CosineAnnealingLR, OneCycleLR, ChainedScheduler, SequentialLR>;

/// All at once: each changes what the one before it left.
struct ChainedScheduler {
  std::vector<Schedule> schedulers;
};

/// One after the other: schedulers[i] from milestones[i - 1] on, from its own step 0. A warm-up followed by a cosine:
///     SequentialLR{{LinearLR{.total_iters = 100}, CosineAnnealingLR{.t_max = 900}}, {100}}
/// Only the first may be a ChainedScheduler or SequentialLR itself.
struct SequentialLR {
  std::vector<Schedule> schedulers;
  std::vector<int64_t> milestones;
};

/// Moves the learning rates of an optimizer (any torch::optim::Optimizer) along a schedule.
///
///     torchup::LrScheduler scheduler{optimizer, torchup::CosineAnnealingLR{.t_max = epochs}};
///     ... optimizer.step(); ... scheduler.step();
///
/// One per optimizer: several schedules are combined by ChainedScheduler or SequentialLR. The optimizer must outlive
/// it. Throws Error when a schedule's numbers make no sense.
class LrScheduler {
 public:
  LrScheduler(torch::optim::Optimizer& optimizer, Schedule schedule);
  ~LrScheduler();
  LrScheduler(LrScheduler&&) noexcept;
  LrScheduler& operator=(LrScheduler&&) noexcept;

  /// After optimizer.step().
  void step();
  /// The rates that the last step() set, one per parameter group.
  const std::vector<double>& last_lr() const;

  /// The position, not the schedule's numbers: those come from the program.
  StateDict state_dict() const;
  /// Also sets the optimizer's learning rates to those of the saved position. Momentum is the optimizer's own state.
  void load_state_dict(const StateDict& state);

 private:
  class Node;
  torch::optim::Optimizer* optimizer_;
  std::unique_ptr<Node> root_;
};

/// Lowers the learning rates when a metric has stopped to improve.
struct PlateauOptions {
  enum class Mode { min, max };
  enum class Threshold { rel, abs };
  Mode mode = Mode::min;    ///< min: smaller is better
  double factor = 0.1;      ///< < 1
  int64_t patience = 10;    ///< bad epochs that are let pass
  double threshold = 1e-4;  ///< how much better counts as better
  Threshold threshold_mode = Threshold::rel;
  int64_t cooldown = 0;             ///< epochs after a reduction in which bad ones do not count
  std::vector<double> min_lr{0.0};  ///< one for all parameter groups, or one each
  double eps = 1e-8;                ///< smaller changes are not made
};

/// torch.optim.lr_scheduler.ReduceLROnPlateau. Give every rank the same metric (all-reduce it first), or their rates
/// part.
class ReduceLROnPlateau {
 public:
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer, PlateauOptions options = {});

  void step(double metric);
  const std::vector<double>& last_lr() const { return last_lr_; }

  StateDict state_dict() const;
  /// Also sets the optimizer's learning rates.
  void load_state_dict(const StateDict& state);

 private:
  bool is_better(double metric) const;

  torch::optim::Optimizer* optimizer_;
  PlateauOptions options_;
  double best_;
  int64_t last_epoch_ = 0;
  int64_t cooldown_counter_ = 0;
  int64_t num_bad_epochs_ = 0;
  std::vector<double> last_lr_;
};

}  // namespace torchup
