// Replays what a Python script did with torch's own classes; the script compares. One process, no process group.
//
// usage: toolkit_replay REQUESTS RESULTS         both are lists of dictionaries (values.hpp), one result per request

#include <ATen/autocast_mode.h>

#include <iostream>
#include <map>
#include <sstream>
#include <torchup/amp.hpp>
#include <torchup/clip.hpp>
#include <torchup/error.hpp>
#include <torchup/fused_optimizers.hpp>
#include <torchup/lr_scheduler.hpp>
#include <torchup/summary.hpp>

#include "values.hpp"

namespace {

using torch::Tensor;
using torch::optim::OptimizerParamGroup;

std::vector<Tensor> as_parameters(const std::vector<Tensor>& tensors, torch::Device device = torch::kCPU) {
  std::vector<Tensor> parameters;
  for (const Tensor& tensor : tensors) parameters.push_back(tensor.detach().clone().to(device).set_requires_grad(true));
  return parameters;
}

/// The optimizer that the request names, over one or two groups; the second has its own learning rate.
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

void copy_through_archive(torch::optim::Optimizer& from, torch::optim::Optimizer& to) {
  std::stringstream stream;
  torch::serialize::OutputArchive saved;
  from.save(saved);
  saved.save_to(stream);
  torch::serialize::InputArchive loaded;
  loaded.load_from(stream);
  to.load(loaded);
}

void set_gradients(const std::vector<Tensor>& parameters, const std::vector<Tensor>& gradients) {
  for (std::size_t i = 0; i < parameters.size(); ++i)
    parameters[i].mutable_grad() = gradients[i].defined() ? gradients[i].clone() : Tensor{};
}

/// gradients: one list per step (an absent one is None). save_after: after so many steps the optimizer is saved and a
/// new one goes on; begin_with: another kind makes these first steps.
Values optimizer_steps(const Values& request) {
  const auto parameters = as_parameters(request.tensors("parameters"));
  auto optimizer = make_optimizer(request, parameters);
  int64_t done = 0;
  for (const c10::IValue& gradients : request.value("gradients").toListRef()) {
    set_gradients(parameters, Values::tensors_of(gradients));
    if (auto* scaled = dynamic_cast<torchup::ScaledStep*>(optimizer.get()); scaled && request.has("grad_scale")) {
      scaled->grad_scale = request.tensor("grad_scale");
      scaled->found_inf = request.tensor("found_inf").select(0, done);
    }
    optimizer->step();
    if (++done == (request.has("save_after") ? request.integer("save_after") : -1)) {
      auto resumed = make_optimizer(request, parameters);
      copy_through_archive(*optimizer, *resumed);
      optimizer = std::move(resumed);
    }
  }
  Values result;
  result.put_all("parameter", parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto found = optimizer->state().find(parameters[i].unsafeGetTensorImpl());
    if (found == optimizer->state().end()) continue;
    const std::string index = std::to_string(i);
    if (const auto* sgd = dynamic_cast<torchup::FusedSGDState*>(found->second.get()))
      result.put("momentum_buffer" + index, sgd->momentum_buffer);
    if (const auto* adam = dynamic_cast<torchup::FusedAdamState*>(found->second.get())) {
      result.put("step" + index, adam->step);
      result.put("exp_avg" + index, adam->exp_avg);
      result.put("exp_avg_sq" + index, adam->exp_avg_sq);
      result.put("max_exp_avg_sq" + index, adam->max_exp_avg_sq);
    }
  }
  return result;
}

/// A FusedAdamW that goes on where torch::optim::AdamW stopped.
Values adamw_from_plain(const Values& request) {
  const auto parameters = as_parameters(request.tensors("parameters"));
  const auto gradients = request.tensors("gradients");
  torch::optim::AdamW plain{parameters, torch::optim::AdamWOptions{0.01}.weight_decay(0.1)};
  set_gradients(parameters, gradients);
  plain.step();
  torchup::FusedAdamW fused{parameters, torchup::FusedAdamWOptions{0.5}};
  copy_through_archive(plain, fused);
  plain.step();
  const auto expected = as_parameters(parameters);
  {
    const torch::NoGradGuard no_gradients;
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(request.tensors("parameters")[i]);
  }
  // The same two steps again, the second by the fused one.
  torch::optim::AdamW again{parameters, torch::optim::AdamWOptions{0.01}.weight_decay(0.1)};
  again.step();
  fused.step();
  Values result;
  result.put_all("parameter", parameters);
  result.put_all("expected", expected);
  return result;
}

Values clip(const Values& request) {
  const auto gradients = request.tensors("gradients");
  std::vector<Tensor> parameters;
  for (const Tensor& gradient : gradients)
    parameters.push_back(gradient.defined() ? torch::zeros_like(gradient) : torch::zeros({2}));
  set_gradients(parameters, gradients);
  if (request.has("threads")) at::set_num_threads(static_cast<int>(request.real("threads")));
  Values result;
  if (request.has("limit")) {
    torchup::clip_grad_value_(parameters, request.real("limit"));
  } else {
    const double norm_type = request.real("norm_type");
    try {
      result.put("norm",
                 torchup::clip_grad_norm_(parameters, request.real("max_norm"),
                                          {.norm_type = norm_type, .error_if_nonfinite = request.flag("strict")}));
    } catch (const torchup::Error& error) {
      result.put("error", std::string{error.what()});
    }
  }
  at::set_num_threads(1);
  for (std::size_t i = 0; i < parameters.size(); ++i) result.put("gradient" + std::to_string(i), parameters[i].grad());
  return result;
}

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

/// The rates and momenta of every group after the construction and each step. At reload_at a new optimizer and a new
/// scheduler take over from what was saved.
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

/// Steps of a linear model in mixed precision, with a batch now and then that overflows.
Values mixed_precision(const Values& request) {
  const torch::Device device{request.text("device")};
  const auto parameters = as_parameters(request.tensors("parameters"), device);  // weight, bias
  auto optimizer = make_optimizer(request, parameters);
  torchup::GradScaler scaler{{.init_scale = request.real("init_scale"), .growth_interval = 2}};
  std::vector<double> scales, losses, norms;
  const auto inputs = request.tensors("inputs");
  const auto targets = request.tensors("targets");
  for (std::size_t step = 0; step < inputs.size(); ++step) {
    optimizer->zero_grad();
    const Tensor input = inputs[step].to(device), target = targets[step].to(device);
    Tensor loss;
    {
      const torchup::Autocast guard{device.type()};
      const Tensor hidden = torch::linear(input, parameters[0], parameters[1]);
      TORCH_CHECK(hidden.scalar_type() == (device.is_cuda() ? torch::kHalf : torch::kBFloat16), "autocast is off");
      Tensor outside;
      {
        const torchup::Autocast off{device.type(), {.enabled = false}};
        outside = torch::linear(input, parameters[0], parameters[1]);
        TORCH_CHECK(outside.scalar_type() == torch::kFloat, "autocast is on");
      }
      loss = torch::mse_loss(hidden.to(torch::kFloat) + outside, target);
    }
    scaler.scale(loss).backward();
    if (request.has("max_norm")) {
      scaler.unscale_(*optimizer);
      norms.push_back(torchup::clip_grad_norm_(parameters, request.real("max_norm")).item<double>());
    }
    scaler.step(*optimizer);
    scaler.update();
    losses.push_back(loss.item<double>());
    scales.push_back(scaler.get_scale());
    if (static_cast<int64_t>(step) == request.integer("reload_at")) {
      const auto state = scaler.state_dict();
      scaler = torchup::GradScaler{{.init_scale = 1, .growth_interval = 77}};
      scaler.load_state_dict(state);
    }
  }
  TORCH_CHECK(!at::autocast::is_autocast_enabled(device.type()), "a guard has left autocast on");
  Values result;
  result.put_all("parameter", parameters);
  result.put("scale", scales);
  result.put("loss", losses);
  if (!norms.empty()) result.put("norm", norms);
  for (const auto& [name, value] : scaler.state_dict()) result.put("state." + name, value);
  return result;
}

/// What must be refused: one line per misuse, what() or "accepted".
Values misuse(const Values&) {
  Values result;
  const auto attempt = [&](const std::string& name, auto&& action) {
    try {
      action();
      result.put(name, std::string{"accepted"});
    } catch (const torchup::Error& error) {
      result.put(name, std::string{error.what()});
    }
  };
  const Tensor weight = torch::ones({2}).set_requires_grad(true);
  const auto with_gradient = [&](torchup::GradScaler& scaler) { scaler.scale((weight * weight).sum()).backward(); };
  torchup::FusedAdamW optimizer{{weight}};
  attempt("bfloat16_momentum", [] {
    const Tensor half = torch::ones({4}, torch::kBFloat16).set_requires_grad(true);
    half.mutable_grad() = torch::ones({4}, torch::kBFloat16);
    torchup::FusedSGD{{half}, torchup::FusedSGDOptions{0.1}.momentum(0.9)}.step();
  });
  attempt("step_before_scale", [&] { torchup::GradScaler{}.step(optimizer); });
  attempt("update_without_check", [&] {
    torchup::GradScaler scaler;
    with_gradient(scaler);
    scaler.update();
  });
  attempt("unscale_twice", [&] {
    torchup::GradScaler scaler;
    with_gradient(scaler);
    scaler.unscale_(optimizer);
    scaler.unscale_(optimizer);
  });
  attempt("step_twice", [&] {
    torchup::GradScaler scaler;
    with_gradient(scaler);
    scaler.step(optimizer);
    scaler.step(optimizer);
  });
  attempt("unscale_after_step", [&] {
    torchup::GradScaler scaler;
    with_gradient(scaler);
    scaler.step(optimizer);
    scaler.unscale_(optimizer);
  });
  attempt("fp16_gradients", [&] {
    const Tensor half = torch::ones({2}, torch::kHalf).set_requires_grad(true);
    torchup::FusedAdamW half_optimizer{{half}};
    torchup::GradScaler scaler;
    scaler.scale((half * half).sum()).backward();
    scaler.unscale_(half_optimizer);
  });
  attempt("load_empty_state", [&] { torchup::GradScaler{}.load_state_dict({}); });
  attempt("autocast_to_double", [&] { torchup::Autocast{torch::kCPU, {.dtype = torch::kDouble}}; });
  attempt("negative_rate", [&] { torchup::FusedSGD{{weight}, torchup::FusedSGDOptions{-1}}; });
  attempt("nesterov_alone", [&] { torchup::FusedSGD{{weight}, torchup::FusedSGDOptions{1}.nesterov(true)}; });
  attempt("onecycle_overrun", [&] {
    torchup::LrScheduler scheduler{optimizer, torchup::OneCycleLR{.max_lr = {1}, .total_steps = 2}};
    for (int step = 0; step < 3; ++step) scheduler.step();
  });
  attempt("milestone_missing", [&] {
    torchup::LrScheduler{optimizer, torchup::SequentialLR{{torchup::StepLR{1}, torchup::StepLR{2}}, {}}};
  });
  attempt("onecycle_without_momentum", [&] {
    torch::optim::Adagrad adagrad{{weight}};
    torchup::LrScheduler{adagrad, torchup::OneCycleLR{.max_lr = {1}, .total_steps = 2}};
  });
  return result;
}

Values summarize(const Values&) {
  torch::nn::Sequential body{torch::nn::Linear{3, 4}, torch::nn::BatchNorm1d{4}};
  struct Net : torch::nn::Module {
  } net;
  net.register_module("body", body);
  net.register_module("head", torch::nn::Linear{4, 2});
  net.register_parameter("scale", torch::ones({1}), /*requires_grad=*/false);
  net.register_module("again", body);  // shared: counts once
  const auto summary = torchup::summary(net);
  std::ostringstream table;
  table << summary;
  Values result;
  result.put("table", table.str());
  result.put("parameters", static_cast<double>(summary.parameters));
  result.put("trainable", static_cast<double>(summary.trainable_parameters));
  result.put("buffers", static_cast<double>(summary.buffers));
  result.put("bytes", static_cast<double>(summary.bytes));
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: toolkit_replay REQUESTS RESULTS\n";
    return 2;
  }
  const std::map<std::string, Values (*)(const Values&)> cases{{"optimizer", optimizer_steps},
                                                               {"adamw_from_plain", adamw_from_plain},
                                                               {"clip", clip},
                                                               {"rates", rates},
                                                               {"amp", mixed_precision},
                                                               {"misuse", misuse},
                                                               {"summary", summarize}};
  try {
    at::set_num_threads(1);
    std::vector<Values> results;
    for (const Values& request : read_values(argv[1])) {
      try {
        results.push_back(cases.at(request.text("case"))(request));
      } catch (const std::exception& error) {
        std::cerr << "case " << request.text("case") << ": " << error.what() << '\n';
        return 1;
      }
    }
    write_values(argv[2], results);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
