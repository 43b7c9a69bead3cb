// A whole training program as a user writes it: accumulation, resumption, a stop by signal. usage: short_program EPOCHS
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <torchup/torchup.hpp>

#include "tests/worker_runtime/test_program.hpp"

namespace short_program {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear hidden{4, 16}, out{nullptr};
  explicit NetImpl(int classes) : out{register_module("out", torch::nn::Linear{16, classes})} {
    register_module("hidden", hidden);
  }
  torch::Tensor forward(const torch::Tensor& input) { return out(torch::relu(hidden(input))); }
};
TORCH_MODULE(Net);

struct Points : torch::data::datasets::Dataset<Points> {
  torch::data::Example<> get(std::size_t index) override {
    const auto number = static_cast<std::int64_t>(index % 10);
    return {torch::full({4}, static_cast<float>(number)), torch::tensor(number)};
  }
  std::optional<std::size_t> size() const override { return 160; }
};

int train(torchup::Worker& worker, std::span<char*> arguments) {
  auto group = torchup::init_process_group({.backend = "auto"});
  torchup::seed_everything({.seed = 42, .deterministic = true}, group);
  Net net(10);
  net->to(worker.device());
  torchup::DistributedDataParallel ddp{net, group, {.gradient_as_bucket_view = true}};
  torch::optim::SGD optimizer{ddp.parameters(), 0.05};
  torchup::DistributedSampler sampler{*Points{}.size(), group, {.shuffle = true}};
  auto loader = torch::data::make_data_loader(Points{}.map(torch::data::transforms::Stack<>{}), sampler, 4);
  torchup::Checkpoint checkpoint{"ckpt", group, {.keep_last = 3}};
  auto at = checkpoint.resume(net, optimizer, sampler, ddp);
  std::printf("begins at step %lld\n", static_cast<long long>(at.step));
  std::fflush(stdout);

  int micro_steps = 0;
  for (; at.epoch < std::atoi(arguments[1]); ++at.epoch) {
    sampler.set_epoch(at.epoch);
    for (auto& batch : torchup::to_device(*loader, worker.device())) {
      const bool last_micro_step = ++micro_steps % 2 == 0;
      {
        auto guard = ddp.no_sync(!last_micro_step);
        torch::nn::functional::cross_entropy(ddp(batch.data), batch.target).backward();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{5});  // so that a signal finds it at work
      if (!last_micro_step) continue;  // gradients that are being added up are in no checkpoint
      optimizer.step();
      optimizer.zero_grad();
      if (worker.end_step(++at.step).stop) return checkpoint.save_and_requeue(at);
    }
  }
  return 0;
}
int run_as_program(int argc, char** argv) { return torchup::worker_main(argc, argv, train); }

const TestProgram program{"short_program", run_as_program};

}  // namespace short_program
