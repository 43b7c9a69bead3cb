// Trains a residual network on Fashion-MNIST with DistributedDataParallel.
//
//   torchup --nproc-per-node=2 fashion_mnist                 two workers on the CPU, gloo
//   torchup --nproc-per-node=auto fashion_mnist              one worker per GPU, nccl
//   fashion_mnist                                            alone, world size 1
//   torchup --nproc-per-node=2 --max-restarts=3 fashion_mnist --elastic --epochs 5
//                                                            kill -9 one of them: the other keeps its state
//
// The Python program examples/python/train_ddp.py trains the same network with the same options and arithmetic.
#include <torch/torch.h>
#include <unistd.h>

#include <boost/timer/progress_display.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <torchup/torchup.hpp>

#include "dataset.hpp"
#include "net.hpp"
#include "options.hpp"

namespace {

using namespace fashion_mnist;

/// What rank 0 tells while it trains; the other ranks are silent.
class Narrator {
 public:
  /// `goes_on`: after the steps that an earlier run has written into `history`.
  Narrator(bool talks, const std::filesystem::path& history, bool goes_on) : talks_{talks} {
    if (!talks || history.empty()) return;
    history_.open(history, goes_on ? std::ios::app : std::ios::trunc);
    if (!history_) throw torchup::Error{history.string() + ": cannot be written"};
    history_.precision(9);  // a float comes back from it bit by bit
  }

  void epoch_begins(std::int64_t steps) {
    if (talks_ && isatty(STDOUT_FILENO) != 0) bar_ = std::make_unique<boost::timer::progress_display>(steps, std::cout);
  }
  void step_ends(std::int64_t step, const torch::Tensor& loss) {
    if (bar_) ++*bar_;
    if (history_.is_open())
      history_ << R"({"step": )" << step << R"(, "loss": )" << loss.item<float>() << "}" << std::endl;
  }
  void epoch_ends(std::int64_t epoch, double loss, double accuracy) {
    bar_.reset();
    if (talks_)
      std::printf("epoch %lld: loss %.4f, accuracy %.2f %%\n", static_cast<long long>(epoch), loss, 100 * accuracy);
    std::fflush(stdout);
  }
  void training_ends(double accuracy) const {
    if (talks_) std::printf("test accuracy %.2f %%\n", 100 * accuracy);
    std::fflush(stdout);
  }

 private:
  bool talks_;
  std::ofstream history_;
  std::unique_ptr<boost::timer::progress_display> bar_;
};

/// Loss and right answers of some batches; summed on the device, so that no step waits for the host.
struct Totals {
  torch::Tensor sums;  // double, [3]: loss, right answers, images

  explicit Totals(torch::Device device) : sums{torch::zeros({3}, torch::dtype(torch::kFloat64).device(device))} {}
  void add(const torch::Tensor& output, const torch::Tensor& target, const torch::Tensor& loss) {
    const torch::Tensor right = output.argmax(1).eq(target).sum();
    const torch::Tensor images = torch::full({}, target.size(0), sums.options());
    sums += torch::stack({loss.detach().to(torch::kFloat64) * target.size(0), right.to(torch::kFloat64), images});
  }
  /// Mean loss and share of right answers over all ranks.
  std::pair<double, double> over_all(const torchup::ProcessGroup& group) {
    torchup::all_reduce(sums, group);
    const torch::Tensor host = sums.cpu();
    const double images = host[2].item<double>();
    return {host[0].item<double>() / images, host[1].item<double>() / images};
  }
};

/// Share of right answers on the test images over all ranks: each takes every size()-th, with rank 0's statistics.
double evaluate(Net& net, const Options& options, const torchup::ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  net->eval();
  torchup::broadcast_coalesced(net->buffers(), group);
  Dataset test{options.data, Dataset::Part::test};
  Totals totals{group.device()};
  constexpr size_t batch_size = 500;
  std::vector<size_t> rows;
  for (size_t row = static_cast<size_t>(group.rank()); row < *test.size(); row += static_cast<size_t>(group.size())) {
    rows.push_back(row);
    if (rows.size() < batch_size && row + static_cast<size_t>(group.size()) < *test.size()) continue;
    const auto batch = test.get_batch(rows);
    const torch::Tensor target = batch.target.to(group.device());
    const torch::Tensor output = net->forward(batch.data.to(group.device()));
    totals.add(output, target, torch::nn::functional::cross_entropy(output, target));
    rows.clear();
  }
  return totals.over_all(group).second;
}

/// The optimizer with what changes its steps: schedule, scaling, clipping. One part of a checkpoint.
class Stepper {
 public:
  Stepper(const Options& options, std::vector<torch::Tensor> parameters, const torchup::ProcessGroup& group,
          std::int64_t total_steps)
      : options_{options}, total_steps_{total_steps}, parameters_{std::move(parameters)},
        scaler_{{.enabled = options.amp && group.device().is_cuda()}} {  // bfloat16 has float32's range
    if (options.zero)
      optimizer_ = std::make_unique<torchup::ZeroRedundancyOptimizer<torchup::FusedSGD>>(
          parameters_, group, torchup::FusedSGDOptions{options.lr}.momentum(options.momentum));
    else
      optimizer_ = std::make_unique<torch::optim::SGD>(parameters_,
                                                       torch::optim::SGDOptions{options.lr}.momentum(options.momentum));
    if (options.scheduler == "cosine")
      scheduler_.emplace(*optimizer_, torchup::CosineAnnealingLR{.t_max = total_steps});
    if (options.scheduler == "onecycle")
      scheduler_.emplace(*optimizer_, torchup::OneCycleLR{.max_lr = {options.lr}, .total_steps = total_steps});
  }

  /// Before the forward pass of step `step`, counted from 0.
  void begin(std::int64_t step) {
    if (options_.scheduler == "linear")
      for (auto& group : optimizer_->param_groups())
        group.options().set_lr(options_.lr * (1 - static_cast<double>(step) / static_cast<double>(total_steps_)));
    optimizer_->zero_grad();
  }
  /// `gate` is given what takes the optimizer's step, and calls it.
  template <class Gate>
  void backward_and_step(const torch::Tensor& loss, const Gate& gate) {
    scaler_.scale(loss).backward();
    if (options_.clip > 0) {
      scaler_.unscale_(*optimizer_);
      torchup::clip_grad_norm_(parameters_, options_.clip);
    }
    gate([this] { scaler_.step(*optimizer_); });
    scaler_.update();
    if (scheduler_) scheduler_->step();
  }

  /// Calls `use` with what a checkpoint holds: the optimizer, unless its state is shared out, and this.
  template <class Use>
  auto with_parts(Use&& use) {
    return options_.zero ? use(*this) : use(*optimizer_, *this);
  }
  /// The shares of a sharded optimizer, scaler and schedule.
  torchup::StateDict state_dict() const {
    torchup::StateDict state;
    const auto add = [&](const std::string& prefix, const torchup::StateDict& part) {
      for (const auto& [name, tensor] : part) state[prefix + name] = tensor;
    };
    if (const auto* zero = sharded()) add("zero.", zero->state_dict());
    if (scheduler_) add("scheduler.", scheduler_->state_dict());
    add("scaler.", scaler_.state_dict());
    return state;
  }
  void load_state_dict(const torchup::StateDict& state) {
    const auto part = [&](const std::string& prefix) {
      torchup::StateDict found;
      for (const auto& [name, tensor] : state)
        if (name.starts_with(prefix)) found[name.substr(prefix.size())] = tensor;
      return found;
    };
    if (auto* zero = const_cast<torchup::ZeroRedundancyOptimizerBase*>(sharded())) zero->load_state_dict(part("zero."));
    if (scheduler_) scheduler_->load_state_dict(part("scheduler."));
    if (scaler_.is_enabled()) scaler_.load_state_dict(part("scaler."));
  }

 private:
  const torchup::ZeroRedundancyOptimizerBase* sharded() const {
    return dynamic_cast<const torchup::ZeroRedundancyOptimizerBase*>(optimizer_.get());
  }

  const Options& options_;
  std::int64_t total_steps_;
  std::vector<torch::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<torchup::LrScheduler> scheduler_;
  torchup::GradScaler scaler_;
};

/// Under the names of the module's parameters and buffers: --weights reads it, and so does Python.
void save_weights(const Net& net, const std::filesystem::path& path) {
  torchup::NamedTensors tensors;
  for (const auto& parameter : net->named_parameters()) tensors.emplace_back(parameter.key(), parameter.value());
  for (const auto& buffer : net->named_buffers()) tensors.emplace_back(buffer.key(), buffer.value());
  torchup::save_safetensors(path, tensors);
}

int train(torchup::Worker& worker, std::span<char*> arguments) {
  int exit_status = 0;
  const auto parsed = parse_options(arguments, worker.rank() == 0, exit_status);
  if (!parsed) return exit_status;
  const Options& options = *parsed;

  torchup::ProcessGroupOptions joining{.backend = options.backend};
  if (options.device != "auto") joining.device = torch::Device{options.device};
  auto group = torchup::init_process_group(joining);
  torchup::seed_everything({.seed = options.seed}, group);

  Net net;
  if (!options.weights.empty()) torchup::load_weights(options.weights, *net);
  if (options.sync_bn) torchup::convert_sync_batchnorm(*net, group);
  net->to(group.device());
  torchup::DistributedDataParallel ddp{net, group, {.gradient_as_bucket_view = true}};

  Dataset images{options.data, Dataset::Part::train, options.samples};
  torchup::DistributedSampler sampler{*images.size(), group, {.shuffle = true, .seed = options.seed}};
  const auto steps_per_epoch =
      (static_cast<std::int64_t>(*images.size()) + options.batch_size - 1) / options.batch_size;
  const std::int64_t total_steps = options.steps > 0 ? options.steps : options.epochs * steps_per_epoch;
  Stepper stepper{options, ddp.parameters(), group, total_steps};

  std::optional<torchup::Checkpoint> checkpoint;
  if (!options.checkpoint.empty())
    checkpoint.emplace(options.checkpoint, group,
                       torchup::CheckpointOptions{.keep_last = 3, .must_resume = options.resume});
  // Whoever starts this again, the launcher after a failure or a change of members, a scheduler or a person: it goes
  // on.
  const auto load = [&] {
    if (!checkpoint) return torchup::Position{};
    return stepper.with_parts([&](auto&... parts) { return checkpoint->resume(net, sampler, ddp, parts...); });
  };
  std::optional<torchup::Elastic> elastic;
  if (options.elastic) elastic.emplace(worker, group, torchup::ElasticOptions{.seed = options.seed, .load = load});

  const auto train_from = [&](torchup::Position at) {
    if (options.batch_size % group.size() != 0)
      throw torchup::Error{"--batch-size " + std::to_string(options.batch_size) +
                           " is for all workers together and must be a multiple of their number, " +
                           std::to_string(group.size())};
    const auto local_batch = static_cast<size_t>(options.batch_size / group.size());
    auto loader = torch::data::make_data_loader(images, sampler, torch::data::DataLoaderOptions{local_batch});
    Narrator narrator{group.rank() == 0, options.history, at.step > 0};
    for (; at.epoch < options.epochs && at.step < total_steps; ++at.epoch) {
      sampler.set_epoch(at.epoch);
      if (sampler.indices().empty()) continue;  // the job was stopped after the epoch's last step
      net->train();
      Totals totals{group.device()};
      narrator.epoch_begins(steps_per_epoch);
      for (auto& batch : torchup::to_device(*loader, group.device(), sampler)) {
        stepper.begin(at.step);
        torch::Tensor output, loss;
        {
          const torchup::Autocast guard{group.device().type(), {.enabled = options.amp}};
          output = ddp(batch.data);
          loss = torch::nn::functional::cross_entropy(output, batch.target);
        }
        stepper.backward_and_step(loss, [&](const auto& step) { elastic ? elastic->step(step) : step(); });
        ++at.step;
        totals.add(output, batch.target, loss);
        narrator.step_ends(at.step, loss);
        if ((elastic ? elastic->commit(at) : worker.end_step(at.step)).stop) {
          if (!checkpoint)
            throw torchup::Error{"the job is to stop, and without --checkpoint nothing of it can be saved"};
          return stepper.with_parts(
              [&](auto&... parts) { return checkpoint->save_and_requeue(at, net, sampler, ddp, parts...); });
        }
        if (at.step == total_steps) break;
      }
      const auto [loss, accuracy] = totals.over_all(group);
      narrator.epoch_ends(at.epoch, loss, accuracy);
      if (checkpoint)
        stepper.with_parts([&](auto&... parts) {
          checkpoint->save({.epoch = at.epoch + 1, .step = at.step}, net, sampler, ddp, parts...);
        });
    }
    narrator.training_ends(evaluate(net, options, group));
    if (checkpoint) checkpoint->wait();  // the last one was only begun: a full disk fails the job
    return 0;
  };
  const int exit_code =
      elastic
          ? stepper.with_parts([&](auto&... parts) { return elastic->run(train_from, net, sampler, ddp, parts...); })
          : train_from(load());
  if (exit_code == 0 && !options.save_weights.empty() && group.rank() == 0) save_weights(net, options.save_weights);
  group.shutdown();
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) { return torchup::worker_main(argc, argv, train); }
