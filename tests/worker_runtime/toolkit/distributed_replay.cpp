// One rank of what a Python script did with torch's own classes, or with one big batch; the script compares. One
// function after another for each class of torch, so longer than 400 lines.
//
// usage: RANK=r WORLD_SIZE=w toolkit_distributed_replay MEETING_FILE REQUESTS RESULTS      one result per request
// (values.hpp)

#include <deque>
#include <iostream>
#include <map>
#include <torchup/clip.hpp>
#include <torchup/collectives.hpp>
#include <torchup/distributed_data_parallel.hpp>
#include <torchup/error.hpp>
#include <torchup/fused_optimizers.hpp>
#include <torchup/power_sgd.hpp>
#include <torchup/sync_batch_norm.hpp>
#include <torchup/wire_hooks.hpp>
#include <torchup/zero_redundancy_optimizer.hpp>

#include "tests/worker_runtime/test_program.hpp"
#include "values.hpp"

namespace toolkit_distributed_replay {

namespace {

using torch::Tensor;
using torch::optim::OptimizerParamGroup;
using torchup::ProcessGroup;
using torchup::ZeroRedundancyOptimizer;

std::string part_name(const Values& request, int64_t ranks, int64_t rank) {
  return request.text("folder") + "/part-" + std::to_string(ranks) + "-" + std::to_string(rank);
}

std::unique_ptr<torchup::ZeroRedundancyOptimizerBase> make_zero(const Values& request,
                                                                const std::vector<Tensor>& parameters,
                                                                const ProcessGroup& group) {
  const torchup::ZeroOptions options{.parameters_as_bucket_view = request.flag("bucket_view")};
  const auto middle = parameters.begin() + static_cast<std::ptrdiff_t>(parameters.size() / 2);
  const auto groups = [&](auto second) {
    second.lr(request.real("second_group_lr"));
    using Options = decltype(second);
    return std::vector<OptimizerParamGroup>{
        OptimizerParamGroup{{parameters.begin(), middle}},
        OptimizerParamGroup{{middle, parameters.end()}, std::make_unique<Options>(second)}};
  };
  const std::string kind = request.text("optimizer");
  if (kind == "sgd") {
    const auto defaults = torchup::FusedSGDOptions{0.1}.momentum(0.9).weight_decay(0.01);
    return std::make_unique<ZeroRedundancyOptimizer<torchup::FusedSGD>>(groups(defaults), group, defaults, options);
  }
  if (kind == "plain_sgd") {
    const auto defaults = torch::optim::SGDOptions{0.1}.momentum(0.9);
    return std::make_unique<ZeroRedundancyOptimizer<torch::optim::SGD>>(groups(defaults), group, defaults, options);
  }
  if (kind == "plain_adam") {
    const auto defaults = torch::optim::AdamOptions{0.01};
    return std::make_unique<ZeroRedundancyOptimizer<torch::optim::Adam>>(groups(defaults), group, defaults, options);
  }
  const torchup::FusedAdamWOptions defaults{0.01};
  return std::make_unique<ZeroRedundancyOptimizer<torchup::FusedAdamW>>(groups(defaults), group, defaults, options);
}

/// Steps from..to of the request's gradients. load_parts: begin with what so many ranks saved; save_part: save at the
/// end.
Values zero(const Values& request, const ProcessGroup& group) {
  std::vector<Tensor> parameters;
  for (const Tensor& tensor : request.tensors("parameters"))
    parameters.push_back(tensor.detach().clone().set_requires_grad(true));
  auto optimizer = make_zero(request, parameters, group);
  if (request.has("load_parts")) {
    const auto ranks = request.integer("load_parts");
    for (int64_t rank = 0; rank < ranks; ++rank) {
      torch::serialize::InputArchive archive;
      archive.load_from(part_name(request, ranks, rank));
      optimizer->load(archive);
    }
    const torch::NoGradGuard no_gradients;
    const auto saved = read_values(part_name(request, ranks, 0) + ".parameters").at(0);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].copy_(saved.tensor("parameter" + std::to_string(i)));
  }
  const auto from = request.integer("from"), to = request.integer("to");
  for (int64_t step = from; step < to; ++step) {
    if (step == 4) {  // what a checkpoint does: rank 0 has the state of all, and everybody gets it
      auto state = optimizer->state_dict();
      TORCH_CHECK(state.empty() == (group.rank() != 0), "the state is not on rank 0 alone");
      Tensor size = torch::tensor(state.empty() ? int64_t{0} : state.at("optimizer").numel());
      torchup::broadcast(size, group);
      if (state.empty()) state["optimizer"] = torch::empty({size.item<int64_t>()}, torch::kByte);
      torchup::broadcast(state.at("optimizer"), group);
      optimizer = make_zero(request, parameters, group);
      optimizer->load_state_dict(state);
    }
    const auto gradients = Values::tensors_of(request.value("gradients").toListRef()[static_cast<std::size_t>(step)]);
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradients[i].clone();
    if (auto* scaled = dynamic_cast<torchup::ScaledStep*>(optimizer.get()); scaled && request.has("grad_scale")) {
      scaled->grad_scale = request.tensor("grad_scale");
      scaled->found_inf = request.tensor("found_inf").select(0, step);
    }
    if (step == 2) optimizer->param_groups()[0].options().set_lr(0.05);  // as a schedule does
    optimizer->step();
  }
  Values result;
  result.put_all("parameter", parameters);
  if (request.flag("save_part")) {
    torch::serialize::OutputArchive archive;
    optimizer->save(archive);
    archive.save_to(part_name(request, group.size(), group.rank()));
    write_values(part_name(request, group.size(), group.rank()) + ".parameters", {result});
  }
  std::vector<double> owners;
  for (const auto& of_group : optimizer->owners()) owners.insert(owners.end(), of_group.begin(), of_group.end());
  result.put("owners", owners);
  double kept = 0;
  for (const auto& local_group : optimizer->local().param_groups())
    for (const Tensor& parameter : local_group.params()) kept += static_cast<double>(parameter.numel());
  result.put("kept", kept);
  result.put("reads", optimizer->reads_memory_of_owners() ? 1.0 : 0.0);
  result.put("states", static_cast<double>(optimizer->local().state().size()));
  if (const auto all = optimizer->consolidate(0)) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto found = all->state().find(parameters[i].unsafeGetTensorImpl());
      if (found == all->state().end()) continue;
      if (const auto* adam = dynamic_cast<torchup::FusedAdamState*>(found->second.get())) {
        result.put("exp_avg" + std::to_string(i), adam->exp_avg);
        result.put("exp_avg_sq" + std::to_string(i), adam->exp_avg_sq);
        result.put("step" + std::to_string(i), adam->step);
      } else if (const auto* sgd = dynamic_cast<torchup::FusedSGDState*>(found->second.get())) {
        result.put("momentum_buffer" + std::to_string(i), sgd->momentum_buffer);
      }
    }
  }
  return result;
}

/// Forward and backward passes of one SyncBatchNorm over this rank's part of the batch.
Values sync_batch_norm(const Values& request, const ProcessGroup& group) {
  auto inputs = request.tensors("inputs"), gradients = request.tensors("gradients");
  for (auto* tensors : {&inputs, &gradients})
    for (Tensor& tensor : *tensors) tensor = tensor.to(group.device());
  auto options = torch::nn::BatchNormOptions{inputs[0].size(1)}
                     .affine(!request.flag("no_affine"))
                     .track_running_stats(!request.flag("no_tracking"));
  options.momentum(request.flag("cumulative") ? std::nullopt : std::optional<double>{0.1});
  torchup::SyncBatchNorm layer{options, group};
  layer->to(group.device(), request.tensor("weight").scalar_type());
  const torch::NoGradGuard no_gradients;
  if (layer->weight.defined()) {
    layer->weight.copy_(request.tensor("weight"));
    layer->bias.copy_(request.tensor("bias"));
  }
  Values result;
  for (std::size_t step = 0; step < inputs.size(); ++step) {
    const torch::AutoGradMode with_gradients{true};
    layer->train(!(request.flag("eval_last") && step + 1 == inputs.size()));
    const Tensor input = inputs[step].clone().set_requires_grad(true);
    const Tensor output = layer->forward(input);
    output.backward(gradients[step]);
    const std::string number = std::to_string(step);
    result.put("output" + number, output);
    result.put("grad" + number, input.grad());
  }
  if (layer->weight.defined()) {
    result.put("grad_weight", layer->weight.grad());
    result.put("grad_bias", layer->bias.grad());
  }
  for (const auto& buffer : layer->named_buffers()) result.put(buffer.key(), buffer.value());
  return result;
}

struct Typed : torch::nn::Module {
  Typed() {
    plain = register_module("plain", torch::nn::BatchNorm1d{3});
    ready = register_module("ready", torchup::SyncBatchNorm{3});
  }
  Tensor forward(const Tensor& input) { return ready(plain(input)); }
  torch::nn::BatchNorm1d plain{nullptr};
  torchup::SyncBatchNorm ready{nullptr};
};

Values convert(const Values& request, const ProcessGroup& group) {
  torch::nn::Sequential inner{torch::nn::BatchNorm1d{torch::nn::BatchNormOptions{3}.momentum(0.3)},
                              torch::nn::Linear{3, 3}};
  inner->eval();
  torch::nn::ModuleList list{torch::nn::Identity{}, torch::nn::BatchNorm1d{3}};
  const std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> entries{
      {"norm", torch::nn::BatchNorm1d{3}.ptr()}};
  torch::nn::ModuleDict dictionary{entries};
  auto typed = std::make_shared<Typed>();
  torch::nn::Sequential model{torch::nn::Linear{3, 3}, torch::nn::Identity{}, torch::nn::BatchNorm1d{3}};
  struct All : torch::nn::Module {
  } all;
  all.register_module("model", model);
  all.register_module("inner", inner);
  all.register_module("list", list);
  all.register_module("dictionary", dictionary);
  all.register_module("typed", typed);
  const auto before = all.named_parameters();
  const auto weight = model[2]->as<torch::nn::BatchNorm1dImpl>()->weight;
  const auto report = torchup::convert_sync_batchnorm(all, group);
  const auto joined = [](const std::vector<std::string>& names) {
    std::string text;
    for (const auto& name : names) text += name + " ";
    return text;
  };
  Values result;
  result.put("converted", joined(report.converted));
  result.put("left_alone", joined(report.left_alone));
  const auto after = all.named_parameters();
  TORCH_CHECK(before.keys() == after.keys(), "names of parameters changed");
  for (const auto& item : before)
    TORCH_CHECK(item.value().is_same(after[item.key()]), item.key(), " is another tensor now");
  const auto* norm = inner[0]->as<torchup::SyncBatchNormImpl>();
  TORCH_CHECK(norm && norm->options.momentum() == 0.3 && !norm->is_training(), "settings got lost");
  TORCH_CHECK(model[2]->as<torchup::SyncBatchNormImpl>()->weight.is_same(weight), "the weight was copied");
  model->train();
  const Tensor output = model->forward(request.tensor("input"));
  result.put("mean", output.sum(0));  // synchronised: the sums of all ranks cancel out
  return result;
}

/// Runs a hook over the buckets of each step the way DDP does: begin all, then the stages of all, stage by stage.
std::vector<Tensor> reduce_buckets(const torchup::CommHook& hook, const c10::IValue& step) {
  std::vector<torchup::BucketReduction> reductions;
  const auto buckets = step.toListRef();
  for (std::size_t index = 0; index < buckets.size(); ++index) {
    const auto gradients = Values::tensors_of(buckets[index]);
    std::vector<Tensor> flat, views;
    for (const Tensor& gradient : gradients) flat.push_back(gradient.flatten());
    const Tensor buffer = torch::cat(flat);
    int64_t at = 0;
    for (const Tensor& gradient : gradients) {
      views.push_back(buffer.narrow(0, at, gradient.numel()).view(gradient.sizes()));
      at += gradient.numel();
    }
    reductions.push_back(hook(torchup::GradBucket{index, index + 1 == buckets.size(), buffer, views, views}));
  }
  for (auto& reduction : reductions) reduction.work.wait();
  for (std::size_t stage = 0, more = 1; more; ++stage) {
    more = 0;
    for (auto& reduction : reductions)
      if (stage < reduction.stages.size()) reduction.work = reduction.stages[stage](), more = 1;
    for (auto& reduction : reductions)
      if (stage < reduction.stages.size()) reduction.work.wait();
  }
  std::vector<Tensor> results;
  for (auto& reduction : reductions) results.push_back(reduction.result.flatten());
  return results;
}

Values hooks(const Values& request, const ProcessGroup& group) {
  torchup::PowerSGDOptions options;
  torchup::CommHook hook;
  std::optional<torchup::PowerSGD> power_sgd;
  const std::string kind = request.text("hook");
  const auto make_power_sgd = [&] {
    power_sgd.emplace(group, options);
    hook = power_sgd->hook();
  };
  if (kind == "power_sgd") {
    options.matrix_approximation_rank = request.integer("matrix_approximation_rank");
    options.start_powerSGD_iter = request.integer("start_powerSGD_iter");
    options.min_compression_rate = request.real("min_compression_rate");
    options.use_error_feedback = request.flag("use_error_feedback");
    options.warm_start = request.flag("warm_start");
    options.orthogonalization_epsilon = request.real("orthogonalization_epsilon");
    options.random_seed = static_cast<std::uint32_t>(request.integer("random_seed"));
    options.batch_tensors_with_same_shape = request.flag("batch_tensors_with_same_shape");
    make_power_sgd();
  } else if (kind == "all_reduce") {
    hook = torchup::all_reduce_hook(group);
  } else if (kind == "fp16") {
    hook = torchup::fp16_compress_hook(group);
  } else if (kind == "bf16_wire") {
    hook = torchup::bf16_wire_hook(group);
  } else if (kind == "bf16") {
    hook = torchup::bf16_compress_hook(group);
  } else if (kind == "fp16_wrapper") {
    hook = torchup::fp16_compress_wrapper(torchup::all_reduce_hook(group));
  } else {
    hook = torchup::bf16_compress_wrapper(torchup::all_reduce_hook(group));
  }
  Values result;
  int64_t number = 0;
  for (const c10::IValue& step : request.value("steps").toListRef()) {
    try {
      result.put("step" + std::to_string(number), torch::cat(reduce_buckets(hook, step)));
    } catch (const torchup::Error& error) {  // before anything was sent
      result.put("error", std::string{error.what()});
      return result;
    }
    if (++number == request.integer("reload_after") && power_sgd) {
      const auto state = power_sgd->state_dict();
      make_power_sgd();
      power_sgd->load_state_dict(state);
    }
  }
  if (power_sgd) {
    result.put("before", static_cast<double>(power_sgd->statistics().before));
    result.put("after", static_cast<double>(power_sgd->statistics().after));
  }
  return result;
}

/// SGD on uneven inputs: this rank has `batches` of them.
Values join(const Values& request, const ProcessGroup& group) {
  struct Net : torch::nn::Module {
    Tensor forward(const Tensor& input) { return body->forward(input); }
    torch::nn::Sequential body =
        register_module("body", torch::nn::Sequential{torch::nn::Linear{6, 8}, torch::nn::BatchNorm1d{8},
                                                      torch::nn::ReLU{}, torch::nn::Linear{8, 2}});
  };
  std::deque<torchup::DistributedDataParallel<std::shared_ptr<Net>>> models;
  std::vector<torchup::DataParallelCore*> joined;
  std::vector<Tensor> parameters, buffers;
  for (int number = 0; number < (request.flag("two_models") ? 2 : 1); ++number) {
    const torch::NoGradGuard no_gradients;
    const auto net = std::make_shared<Net>();
    const auto values = request.tensors("parameters");
    for (std::size_t i = 0; i < values.size(); ++i) parameters.emplace_back(net->parameters()[i]).copy_(values[i]);
    for (const Tensor& buffer : net->buffers()) buffers.push_back(buffer);
    joined.push_back(&models.emplace_back(net, group));
  }
  torch::optim::SGD optimizer{parameters, torch::optim::SGDOptions{0.1}.momentum(0.9)};
  const auto inputs = request.tensors("inputs");
  int64_t steps = 0;
  Values result;
  const auto train = [&] {
    for (const Tensor& input : inputs) {
      optimizer.zero_grad();
      for (std::size_t number = 0; number < models.size(); ++number) {
        const auto guard = models[number].no_sync(steps % 4 == 2);
        (static_cast<double>(number) + models[number](input)).square().mean().backward();
      }
      optimizer.step();
      ++steps;
    }
  };
  try {
    torchup::join(group, joined, train,
                  {.divide_by_initial_world_size = !request.flag("divide_by_active"),
                   .throw_on_early_termination = request.flag("throw")});
    result.put("error", std::string{});
  } catch (const torchup::Error& error) {
    result.put("error", std::string{error.what()});
  }
  result.put("steps", static_cast<double>(steps));
  result.put_all("parameter", parameters);
  result.put_all("buffer", buffers);
  return result;
}

Values clip_shards(const Values& request, const ProcessGroup& group) {
  std::vector<Tensor> parameters;
  for (const Tensor& gradient : request.tensors("gradients")) {
    parameters.push_back(torch::zeros_like(gradient));
    parameters.back().mutable_grad() = gradient.clone();
  }
  Values result;
  result.put("norm", torchup::clip_grad_norm_(parameters, request.real("max_norm"), group,
                                              {.norm_type = request.real("norm_type")}));
  for (std::size_t i = 0; i < parameters.size(); ++i) result.put("gradient" + std::to_string(i), parameters[i].grad());
  return result;
}

}  // namespace

int run_as_program(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: RANK=r WORLD_SIZE=w toolkit_distributed_replay MEETING_FILE REQUESTS RESULTS\n";
    return 2;
  }
  const std::map<std::string, Values (*)(const Values&, const ProcessGroup&)> cases{
      {"zero", zero},   {"sync_batch_norm", sync_batch_norm}, {"convert", convert}, {"join", join},
      {"hooks", hooks}, {"clip_shards", clip_shards}};
  try {
    at::set_num_threads(1);
    torchup::ProcessGroupOptions options;
    options.backend = "gloo";
    if (std::getenv("TEST_ONE_GPU")) {  // all ranks on the same
      options.backend = "nccl";
      options.device = torch::Device{"cuda:0"};
    }
    options.init_method = std::string{"file://"} + argv[1];
    options.timeout = std::chrono::seconds{60};
    auto group = torchup::init_process_group(options);
    std::vector<Values> results;
    for (const Values& request : read_values(argv[2])) {
      try {
        results.push_back(cases.at(request.text("case"))(request, group));
      } catch (const std::exception& error) {
        std::cerr << "rank " << group.rank() << ", case " << request.text("case") << ": " << error.what() << std::endl;
        _exit(1);  // the others see a lost connection; no destructor waits for them
      }
    }
    write_values(argv[3], results);
    group.shutdown();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    _exit(1);
  }
  return 0;
}

const TestProgram program{"toolkit_distributed_replay", run_as_program};

}  // namespace toolkit_distributed_replay
