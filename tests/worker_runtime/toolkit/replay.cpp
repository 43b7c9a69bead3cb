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

#include "replay_cases.hpp"
#include "tests/worker_runtime/test_program.hpp"

namespace toolkit_replay {

namespace {

using torch::Tensor;
using torch::optim::OptimizerParamGroup;

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
  attempt("onecycle_phase_of_no_steps", [&] {
    torchup::LrScheduler scheduler{optimizer, torchup::OneCycleLR{.max_lr = {1}, .total_steps = 3, .pct_start = 1}};
    for (int step = 0; step < 2; ++step) scheduler.step();
    TORCH_CHECK(scheduler.last_lr().at(0) == 1, "the last step that Python makes");
    scheduler.step();
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

int run_as_program(int argc, char** argv) {
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

const TestProgram program{"toolkit_replay", run_as_program};

}  // namespace toolkit_replay
