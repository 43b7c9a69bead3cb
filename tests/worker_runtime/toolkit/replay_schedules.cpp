// Schedules of learning rates, and the optimizers that they are for.
#include <torchup/fused_optimizers.hpp>
#include <torchup/lr_scheduler.hpp>

#include "replay_cases.hpp"

using torch::Tensor;
using torch::optim::OptimizerParamGroup;

std::vector<Tensor> as_parameters(const std::vector<Tensor>& tensors, torch::Device device) {
  std::vector<Tensor> parameters;
  for (const Tensor& tensor : tensors) parameters.push_back(tensor.detach().clone().to(device).set_requires_grad(true));
  return parameters;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Values& request, std::vector<Tensor> parameters) {
  const std::string kind = request.text("optimizer");
  const auto real = [&](const char* name, double otherwise) {
    return request.has(name) ? request.real(name) : otherwise;
  };
  std::vector<OptimizerParamGroup> groups;
  const auto make = [&]<class Optimizer>(auto options) -> std::unique_ptr<torch::optim::Optimizer> {
    using Options = decltype(options);
    const auto split = request.has("second_group_lr") ? parameters.size() / 2 : parameters.size();
    const auto middle = parameters.begin() + static_cast<std::ptrdiff_t>(split);
    groups.emplace_back(std::vector<Tensor>(parameters.begin(), middle), std::make_unique<Options>(options));
    if (middle != parameters.end()) {
      auto second = options;
      second.lr(request.real("second_group_lr"));
      groups.emplace_back(std::vector<Tensor>(middle, parameters.end()), std::make_unique<Options>(second));
    }
    return std::make_unique<Optimizer>(groups, options);
  };
  if (kind == "sgd" || kind == "plain_sgd") {
    const auto set = [&](auto options) {
      options.momentum(real("momentum", 0)).dampening(real("dampening", 0)).weight_decay(real("weight_decay", 0));
      options.nesterov(request.flag("nesterov"));
      return options;
    };
    if (kind == "plain_sgd")
      return make.operator()<torch::optim::SGD>(set(torch::optim::SGDOptions{request.real("lr")}));
    return make.operator()<torchup::FusedSGD>(
        set(torchup::FusedSGDOptions{request.real("lr")}.maximize(request.flag("maximize"))));
  }
  const auto set = [&](auto options) {
    options.betas({real("beta1", 0.9), real("beta2", 0.999)}).eps(real("eps", 1e-8)).amsgrad(request.flag("amsgrad"));
    if (request.has("weight_decay")) options.weight_decay(request.real("weight_decay"));
    return options;
  };
  if (kind == "plain_adamw")
    return make.operator()<torch::optim::AdamW>(set(torch::optim::AdamWOptions{request.real("lr")}));
  if (kind == "adam") {
    auto options = set(torchup::FusedAdamOptions{request.real("lr")});
    return make.operator()<torchup::FusedAdam>(options.maximize(request.flag("maximize")));
  }
  auto options = set(torchup::FusedAdamWOptions{request.real("lr")});
  options.maximize(request.flag("maximize"));
  return make.operator()<torchup::FusedAdamW>(options);
}

namespace {

torchup::Schedule schedule_of(const Values& request) {
  const std::string kind = request.text("kind");
  const auto integers = [&](const char* name) {
    std::vector<int64_t> all;
    for (const double number : request.reals(name)) all.push_back(static_cast<int64_t>(number));
    return all;
  };
  const auto children = [&] {
    std::vector<torchup::Schedule> all;
    for (const c10::IValue& child : request.value("schedulers").toListRef()) all.push_back(schedule_of(Values{child}));
    return all;
  };
  if (kind == "step") return torchup::StepLR{.step_size = request.integer("step_size"), .gamma = request.real("gamma")};
  if (kind == "multistep")
    return torchup::MultiStepLR{.milestones = integers("milestones"), .gamma = request.real("gamma")};
  if (kind == "linear")
    return torchup::LinearLR{.start_factor = request.real("start_factor"),
                             .end_factor = request.real("end_factor"),
                             .total_iters = request.integer("total_iters")};
  if (kind == "cosine")
    return torchup::CosineAnnealingLR{.t_max = request.integer("t_max"), .eta_min = request.real("eta_min")};
  if (kind == "chained") return torchup::ChainedScheduler{children()};
  if (kind == "sequential") return torchup::SequentialLR{children(), integers("milestones")};
  TORCH_CHECK(kind == "onecycle", "no such schedule: ", kind);
  torchup::OneCycleLR cycle{.max_lr = request.reals("max_lr"), .total_steps = request.integer("total_steps")};
  cycle.pct_start = request.real("pct_start");
  if (request.flag("linear")) cycle.anneal_strategy = torchup::OneCycleLR::Anneal::linear;
  cycle.cycle_momentum = request.flag("cycle_momentum");
  cycle.three_phase = request.flag("three_phase");
  return cycle;
}

double momentum_of(const torch::optim::OptimizerOptions& options) {
  if (const auto* sgd = dynamic_cast<const torchup::FusedSGDOptions*>(&options)) return sgd->momentum();
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options)) return sgd->momentum();
  if (const auto* adam = dynamic_cast<const torchup::FusedAdamOptions*>(&options)) return std::get<0>(adam->betas());
  return std::get<0>(dynamic_cast<const torch::optim::AdamWOptions&>(options).betas());
}

}  // namespace

Values rates(const Values& request) {
  const Values schedule{request.value("schedule")};
  const bool plateau = schedule.text("kind") == "plateau";
  const auto parameters = as_parameters({torch::zeros({1}), torch::zeros({1})});
  auto optimizer = make_optimizer(request, parameters);
  torchup::PlateauOptions options;
  if (plateau) {
    options.mode =
        schedule.text("mode") == "min" ? torchup::PlateauOptions::Mode::min : torchup::PlateauOptions::Mode::max;
    options.threshold_mode = schedule.text("threshold_mode") == "rel" ? torchup::PlateauOptions::Threshold::rel
                                                                      : torchup::PlateauOptions::Threshold::abs;
    options.factor = schedule.real("factor");
    options.patience = schedule.integer("patience");
    options.threshold = schedule.real("threshold");
    options.cooldown = schedule.integer("cooldown");
    options.min_lr = schedule.reals("min_lr");
  }
  std::optional<torchup::LrScheduler> scheduler;
  std::optional<torchup::ReduceLROnPlateau> reducer;
  const auto attach = [&] {
    if (plateau)
      reducer.emplace(*optimizer, options);
    else
      scheduler.emplace(*optimizer, schedule_of(schedule));
  };
  attach();
  std::vector<double> all, momenta;
  const auto record = [&] {
    const auto& last = plateau ? reducer->last_lr() : scheduler->last_lr();
    for (std::size_t i = 0; i < optimizer->param_groups().size(); ++i) {
      const auto& group = optimizer->param_groups()[i].options();
      TORCH_CHECK(group.get_lr() == last.at(i), "last_lr() is not the optimizer's rate");
      all.push_back(group.get_lr());
      momenta.push_back(momentum_of(group));
    }
  };
  record();
  const auto steps = request.integer("steps");
  const auto metrics = plateau ? request.reals("metrics") : std::vector<double>{};
  for (int64_t step = 0; step < steps; ++step) {
    if (step == request.integer("reload_at")) {
      const auto state = plateau ? reducer->state_dict() : scheduler->state_dict();
      optimizer = make_optimizer(request, parameters);
      attach();
      plateau ? reducer->load_state_dict(state) : scheduler->load_state_dict(state);
    }
    if (plateau)
      reducer->step(metrics.at(static_cast<std::size_t>(step)));
    else
      scheduler->step();
    record();
  }
  Values result;
  result.put("lr", all);
  result.put("momentum", momenta);
  return result;
}
