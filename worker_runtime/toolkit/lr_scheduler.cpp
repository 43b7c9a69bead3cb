// One schedule of PyTorch after the other, in the order of its documentation; so longer than 400 lines.
#include <fmt/format.h>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <torchup/error.hpp>
#include <torchup/fused_optimizers.hpp>
#include <torchup/lr_scheduler.hpp>

namespace torchup {
namespace {

using Rates = std::vector<double>;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
constexpr double pi = std::numbers::pi;

Rates rates_of(Optimizer& optimizer) {
  Rates rates;
  for (auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void set_rates(Optimizer& optimizer, const Rates& rates) {
  auto& groups = optimizer.param_groups();
  if (groups.size() != rates.size())
    throw Error{fmt::format("learning rate schedule: it was made for {} parameter groups, the optimizer has {}",
                            rates.size(), groups.size())};
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(rates[i]);
}

/// Sets the momentum, or with `betas` the first of them; false when the options have neither.
bool set_momentum(OptimizerOptions& options, double momentum) {
  const auto as_momentum = [&](auto* known) { return known && (known->momentum(momentum), true); };
  const auto as_beta = [&](auto* known) {
    return known && (known->betas(std::make_tuple(momentum, std::get<1>(known->betas()))), true);
  };
  return as_momentum(dynamic_cast<torch::optim::SGDOptions*>(&options)) ||
         as_momentum(dynamic_cast<FusedSGDOptions*>(&options)) ||
         as_momentum(dynamic_cast<torch::optim::RMSpropOptions*>(&options)) ||
         as_beta(dynamic_cast<torch::optim::AdamOptions*>(&options)) ||
         as_beta(dynamic_cast<torch::optim::AdamWOptions*>(&options)) ||
         as_beta(dynamic_cast<FusedAdamOptions*>(&options));
}

/// `values` is one for all groups, or one for each.
Rates per_group(const Rates& values, std::size_t groups, const char* name) {
  if (values.size() == groups) return values;
  if (values.size() == 1) return Rates(groups, values.front());
  throw Error{
      fmt::format("learning rate schedule: {} has {} values for {} parameter groups", name, values.size(), groups)};
}

void require(bool holds, const char* message) {
  if (!holds) throw Error{std::string{"learning rate schedule: "} + message};
}

torch::Tensor integer(int64_t value) { return torch::tensor(value, torch::kLong); }
torch::Tensor reals(const Rates& values) { return torch::tensor(values, torch::kDouble); }

const torch::Tensor& entry(const StateDict& state, const std::string& name) {
  const auto found = state.find(name);
  if (found == state.end()) throw Error{"learning rate schedule: the state to load has no " + name};
  return found->second;
}

Rates reals_in(const StateDict& state, const std::string& name, std::size_t count) {
  const auto values = entry(state, name).to(torch::kCPU, torch::kDouble).contiguous();
  if (values.numel() != static_cast<int64_t>(count))
    throw Error{fmt::format(
        "learning rate schedule: the state to load has {} values of {}, the optimizer has {} parameter groups",
        values.numel(), name, count)};
  return {values.data_ptr<double>(), values.data_ptr<double>() + values.numel()};
}

template <class... Functions>
struct Overload : Functions... {
  using Functions::operator()...;
};

}  // namespace

/// One scheduler object of Python's: a schedule with its position. The formulas and the order of operations are
/// Python's, since each rate is computed from the one before and the last bit is to be the same.
class LrScheduler::Node {
 public:
  /// `initial` are the groups' initial rates, which the nodes of one scheduler share.
  Node(Optimizer& optimizer, Schedule schedule, std::shared_ptr<Rates> initial)
      : optimizer_{optimizer}, schedule_{std::move(schedule)}, initial_{std::move(initial)} {
    std::visit(Overload{[&](const ChainedScheduler& chained) { construct(chained); },
                        [&](const SequentialLR& sequence) { construct(sequence); },
                        [&](const auto& leaf) {
                          check(leaf);
                          prepare(leaf);
                          base_rates_ = *initial_;
                          initial_step();
                        }},
               schedule_);
  }

  void step() {
    if (std::holds_alternative<ChainedScheduler>(schedule_)) {
      for (auto& child : children_) child->step();
      last_rates_ = rates_of(optimizer_);
    } else if (const auto* sequence = std::get_if<SequentialLR>(&schedule_)) {
      ++last_epoch_;
      const std::size_t index = active(*sequence, last_epoch_);
      if (index > 0 && sequence->milestones[index - 1] == last_epoch_)
        children_[index]->restart();
      else
        children_[index]->step();
      last_rates_ = children_[index]->last_rates_;
    } else {
      ++step_count_;
      ++last_epoch_;
      apply(next());
    }
  }

  const Rates& last_rates() const { return last_rates_; }

  void save(StateDict& state, const std::string& prefix) const {
    state[prefix + "last_epoch"] = integer(last_epoch_);
    state[prefix + "step_count"] = integer(step_count_);
    state[prefix + "base_lrs"] = reals(base_rates_);
    state[prefix + "last_lr"] = reals(last_rates_);
    for (std::size_t i = 0; i < children_.size(); ++i) children_[i]->save(state, prefix + std::to_string(i) + ".");
  }

  void load(const StateDict& state, const std::string& prefix) {
    last_epoch_ = entry(state, prefix + "last_epoch").item<int64_t>();
    step_count_ = entry(state, prefix + "step_count").item<int64_t>();
    base_rates_ = reals_in(state, prefix + "base_lrs", base_rates_.size());
    last_rates_ = reals_in(state, prefix + "last_lr", last_rates_.size());
    for (std::size_t i = 0; i < children_.size(); ++i) children_[i]->load(state, prefix + std::to_string(i) + ".");
  }

 private:
  static std::size_t active(const SequentialLR& sequence, int64_t epoch) {
    const auto& milestones = sequence.milestones;
    return static_cast<std::size_t>(std::upper_bound(milestones.begin(), milestones.end(), epoch) - milestones.begin());
  }

  void construct(const ChainedScheduler& chained) {
    require(!chained.schedulers.empty(), "a ChainedScheduler needs at least one scheduler");
    for (const Schedule& child : chained.schedulers)
      children_.push_back(std::make_unique<Node>(optimizer_, child, initial_));
    last_rates_ = rates_of(optimizer_);
  }

  void construct(const SequentialLR& sequence) {
    require(!sequence.schedulers.empty(), "a SequentialLR needs at least one scheduler");
    require(sequence.milestones.size() == sequence.schedulers.size() - 1,
            "a SequentialLR needs one milestone less than schedulers");
    for (std::size_t i = 1; i < sequence.schedulers.size(); ++i)
      require(!std::holds_alternative<ChainedScheduler>(sequence.schedulers[i]) &&
                  !std::holds_alternative<SequentialLR>(sequence.schedulers[i]),
              "only the first scheduler of a SequentialLR may be chained or sequential itself");
    for (const Schedule& child : sequence.schedulers)
      children_.push_back(std::make_unique<Node>(optimizer_, child, initial_));
    // All of them have made their first step; take it back and let the first one make it again.
    last_epoch_ = 0;
    set_rates(optimizer_, *initial_);
    undo();
    const std::size_t first = active(sequence, 0);
    children_[first]->initial_step();
    last_rates_ = children_[first]->last_rates_;
  }

  void undo() {
    for (auto& child : children_) child->undo();
    if (children_.empty()) --last_epoch_;
  }

  void initial_step() {
    step_count_ = 0;
    initial_mode_ = true;
    step();
    initial_mode_ = false;
  }

  /// Step 0 in the middle of a SequentialLR: from the base rates where there is a formula for it.
  void restart() {
    last_epoch_ = 0;
    apply(at_zero());
  }

  void apply(Rates rates) {
    set_rates(optimizer_, rates);
    last_rates_ = std::move(rates);
  }

  static void check(const StepLR& of) { require(of.step_size > 0, "StepLR's step_size must be > 0"); }
  static void check(const MultiStepLR&) {}
  static void check(const LinearLR& of) {
    require(of.start_factor > 0 && of.start_factor <= 1,
            "LinearLR's start_factor must be greater than 0 and at most 1");
    require(of.end_factor >= 0 && of.end_factor <= 1, "LinearLR's end_factor must be between 0 and 1");
  }
  static void check(const CosineAnnealingLR& of) { require(of.t_max > 0, "CosineAnnealingLR's t_max must be > 0"); }
  static void check(const OneCycleLR& of) {
    require(of.total_steps > 0, "OneCycleLR's total_steps must be > 0");
    require(of.pct_start >= 0 && of.pct_start <= 1, "OneCycleLR's pct_start must be between 0 and 1");
  }

  void prepare(const auto&) {}
  void prepare(const OneCycleLR& cycle) {
    const std::size_t groups = optimizer_.param_groups().size();
    max_rates_ = per_group(cycle.max_lr, groups, "max_lr");
    for (std::size_t i = 0; i < groups; ++i) (*initial_)[i] = max_rates_[i] / cycle.div_factor;
    if (!cycle.cycle_momentum) return;
    max_momentum_ = per_group(cycle.max_momentum, groups, "max_momentum");
    base_momentum_ = per_group(cycle.base_momentum, groups, "base_momentum");
    for (std::size_t i = 0; i < groups; ++i)
      require(set_momentum(optimizer_.param_groups()[i].options(), max_momentum_[i]),
              "OneCycleLR's cycle_momentum needs an optimizer with momentum or betas");
  }

  /// The rates at last_epoch_, from the optimizer's present ones.
  Rates next() {
    return std::visit([&](const auto& schedule) { return next(schedule, rates_of(optimizer_)); }, schedule_);
  }

  Rates next(const StepLR& of, Rates rates) const {
    if (last_epoch_ != 0 && last_epoch_ % of.step_size == 0)
      for (double& rate : rates) rate = rate * of.gamma;
    return rates;
  }

  Rates next(const MultiStepLR& of, Rates rates) const {
    if (const auto times = std::count(of.milestones.begin(), of.milestones.end(), last_epoch_); times > 0)
      for (double& rate : rates) rate = rate * std::pow(of.gamma, static_cast<double>(times));
    return rates;
  }

  Rates next(const LinearLR& of, Rates rates) const {
    if (last_epoch_ == 0) {
      for (double& rate : rates) rate = rate * of.start_factor;
    } else if (!initial_mode_ && last_epoch_ <= of.total_iters) {
      const double rise = of.end_factor - of.start_factor;
      const double reached =
          static_cast<double>(of.total_iters) * of.start_factor + static_cast<double>(last_epoch_ - 1) * rise;
      for (double& rate : rates) rate = rate * (1.0 + rise / reached);
    }
    return rates;
  }

  Rates next(const CosineAnnealingLR& of, Rates rates) const {
    const auto epoch = static_cast<double>(last_epoch_);
    const auto t_max = static_cast<double>(of.t_max);
    for (std::size_t i = 0; i < rates.size(); ++i) {
      if (initial_mode_) continue;
      if (step_count_ == 1 && last_epoch_ > 0)
        rates[i] = of.eta_min + (base_rates_[i] - of.eta_min) * (1 + std::cos(epoch * pi / t_max)) / 2;
      else if ((last_epoch_ - 1 - of.t_max) % (2 * of.t_max) == 0)
        rates[i] = rates[i] + (base_rates_[i] - of.eta_min) * (1 - std::cos(pi / t_max)) / 2;
      else
        rates[i] =
            (1 + std::cos(pi * epoch / t_max)) / (1 + std::cos(pi * (epoch - 1) / t_max)) * (rates[i] - of.eta_min) +
            of.eta_min;
    }
    return rates;
  }

  Rates next(const OneCycleLR& of, Rates rates) const {
    require(last_epoch_ <= of.total_steps, "OneCycleLR: step() was called more than total_steps times");
    const auto total = static_cast<double>(of.total_steps);
    struct Phase {
      double end;
      bool up, last;
    };
    std::vector<Phase> phases{{of.pct_start * total - 1, true, false}};
    if (of.three_phase) phases.push_back({2 * of.pct_start * total - 2, false, false});
    phases.push_back({total - 1, false, true});
    const auto step = static_cast<double>(last_epoch_);
    std::size_t index = 0;
    while (index + 1 < phases.size() && step > phases[index].end) ++index;
    const double begin = index == 0 ? 0.0 : phases[index - 1].end;
    // As for pct_start 1 and step total_steps: there Python divides by zero.
    require(phases[index].end != begin, "OneCycleLR's pct_start leaves no steps to the phase that begins now");
    const double part = (step - begin) / (phases[index].end - begin);
    const auto anneal = [&](double from, double to) {
      if (of.anneal_strategy == OneCycleLR::Anneal::linear) return (to - from) * part + from;
      return to + (from - to) / 2.0 * (std::cos(pi * part) + 1);
    };
    // With three phases the last one starts where the second ended, at the initial rate and the highest momentum.
    const bool tail = of.three_phase && phases[index].last;
    for (std::size_t i = 0; i < rates.size(); ++i) {
      const double low = (*initial_)[i], high = max_rates_[i], final = low / of.final_div_factor;
      const bool up = phases[index].up;
      rates[i] = up ? anneal(low, high) : tail ? anneal(low, final) : anneal(high, phases[index].last ? final : low);
      if (!of.cycle_momentum) continue;
      const double base = base_momentum_[i], top = max_momentum_[i];
      set_momentum(optimizer_.param_groups()[i].options(), up     ? anneal(top, base)
                                                           : tail ? anneal(top, top)
                                                                  : anneal(base, top));
    }
    return rates;
  }

  Rates next(const ChainedScheduler&, Rates rates) const { return rates; }
  Rates next(const SequentialLR&, Rates rates) const { return rates; }

  /// The rates at step 0 without a history: Python's closed forms, rounding included.
  Rates at_zero() {
    Rates rates = base_rates_;
    const auto times = [&](double factor) {
      for (double& rate : rates) rate = rate * factor;
    };
    std::visit(Overload{[](const auto&) {},
                        [&](const MultiStepLR& of) {
                          const auto passed =
                              std::count_if(of.milestones.begin(), of.milestones.end(), [](auto m) { return m <= 0; });
                          times(std::pow(of.gamma, static_cast<double>(passed)));
                        },
                        [&](const LinearLR& of) { times(of.start_factor); },
                        [&](const CosineAnnealingLR& of) {
                          for (double& rate : rates) rate = of.eta_min + (rate - of.eta_min) * 2 / 2;
                        },
                        [&](const OneCycleLR& of) { rates = next(of, rates); }},
               schedule_);
    return rates;
  }

  Optimizer& optimizer_;
  Schedule schedule_;
  std::shared_ptr<Rates> initial_;
  std::vector<std::unique_ptr<Node>> children_;
  int64_t last_epoch_ = -1;
  int64_t step_count_ = 0;
  bool initial_mode_ = false;
  Rates base_rates_, last_rates_;
  Rates max_rates_, base_momentum_, max_momentum_;  // of OneCycleLR
};

LrScheduler::LrScheduler(Optimizer& optimizer, Schedule schedule)
    : optimizer_{&optimizer}, root_{std::make_unique<Node>(optimizer, std::move(schedule),
                                                           std::make_shared<Rates>(rates_of(optimizer)))} {}
LrScheduler::~LrScheduler() = default;
LrScheduler::LrScheduler(LrScheduler&&) noexcept = default;
LrScheduler& LrScheduler::operator=(LrScheduler&&) noexcept = default;

void LrScheduler::step() { root_->step(); }

const Rates& LrScheduler::last_lr() const { return root_->last_rates(); }

StateDict LrScheduler::state_dict() const {
  StateDict state;
  root_->save(state, "");
  return state;
}

void LrScheduler::load_state_dict(const StateDict& state) {
  root_->load(state, "");
  set_rates(*optimizer_, root_->last_rates());
}

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, PlateauOptions options)
    : optimizer_{&optimizer}, options_{std::move(options)}, best_{options_.mode == PlateauOptions::Mode::min
                                                                      ? std::numeric_limits<double>::infinity()
                                                                      : -std::numeric_limits<double>::infinity()},
      last_lr_{rates_of(optimizer)} {
  require(options_.factor < 1, "ReduceLROnPlateau's factor must be < 1");
  options_.min_lr = per_group(options_.min_lr, last_lr_.size(), "min_lr");
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const bool relative = options_.threshold_mode == PlateauOptions::Threshold::rel;
  if (options_.mode == PlateauOptions::Mode::min)
    return metric < (relative ? best_ * (1.0 - options_.threshold) : best_ - options_.threshold);
  return metric > (relative ? best_ * (options_.threshold + 1.0) : best_ + options_.threshold);
}

void ReduceLROnPlateau::step(double metric) {
  ++last_epoch_;
  if (is_better(metric)) {
    best_ = metric;
    num_bad_epochs_ = 0;
  } else {
    ++num_bad_epochs_;
  }
  if (cooldown_counter_ > 0) {
    --cooldown_counter_;
    num_bad_epochs_ = 0;
  }
  Rates rates = rates_of(*optimizer_);
  if (num_bad_epochs_ > options_.patience) {
    for (std::size_t i = 0; i < rates.size(); ++i) {
      const double lower = std::max(rates[i] * options_.factor, options_.min_lr.at(i));
      if (rates[i] - lower > options_.eps) rates[i] = lower;
    }
    set_rates(*optimizer_, rates);
    cooldown_counter_ = options_.cooldown;
    num_bad_epochs_ = 0;
  }
  last_lr_ = std::move(rates);
}

StateDict ReduceLROnPlateau::state_dict() const {
  return {{"best", torch::tensor(best_, torch::kDouble)},
          {"last_epoch", integer(last_epoch_)},
          {"cooldown_counter", integer(cooldown_counter_)},
          {"num_bad_epochs", integer(num_bad_epochs_)},
          {"last_lr", reals(last_lr_)}};
}

void ReduceLROnPlateau::load_state_dict(const StateDict& state) {
  best_ = entry(state, "best").item<double>();
  last_epoch_ = entry(state, "last_epoch").item<int64_t>();
  cooldown_counter_ = entry(state, "cooldown_counter").item<int64_t>();
  num_bad_epochs_ = entry(state, "num_bad_epochs").item<int64_t>();
  last_lr_ = reals_in(state, "last_lr", last_lr_.size());
  set_rates(*optimizer_, last_lr_);
}

}  // namespace torchup
