// The C++ side of bench_ddp.py: one rank. usage: bench_ddp_step LAYERS WIDTH BATCH STEPS VIEW
// Rank 0 prints one JSON object, microseconds: tenth percentile of the step, of the step without reduction, of the
// reduction alone, and the CPU time of an average step.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <torchup/torchup.hpp>
#include <vector>

namespace {

struct LayersImpl : torch::nn::Module {
  std::vector<torch::nn::Linear> layers;
  LayersImpl(int count, int width) {
    for (int layer = 0; layer < count; ++layer)
      layers.push_back(register_module(std::to_string(layer), torch::nn::Linear(width, width)));
  }
  torch::Tensor forward(torch::Tensor input) {
    for (auto& layer : layers) input = torch::relu(layer(input));
    return input;
  }
};
TORCH_MODULE(Layers);

double cpu_us() {
  timespec spent{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) * 1e6 + static_cast<double>(spent.tv_nsec) / 1e3;
}

struct Measured {
  double p10, cpu;
};

Measured measure(int steps, const std::function<void()>& step) {
  for (int i = 0; i < 5; ++i) step();
  std::vector<double> times;
  const double cpu_before = cpu_us();
  for (int i = 0; i < steps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    step();
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  const double cpu = (cpu_us() - cpu_before) / steps;
  std::sort(times.begin(), times.end());
  return {times[times.size() / 10], cpu};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  torch::set_num_threads(1);
  auto group = torchup::init_process_group({.backend = "gloo"});
  torch::manual_seed(1);
  Layers model(std::atoi(argv[1]), std::atoi(argv[2]));
  const int steps = std::atoi(argv[4]);
  torchup::DistributedDataParallel ddp{model, group, {.gradient_as_bucket_view = std::atoi(argv[5]) == 1}};
  torch::optim::SGD optimizer{ddp.parameters(), 0.01};
  const auto input = torch::randn({std::atoi(argv[3]), std::atoi(argv[2])});
  const auto step = [&] {
    optimizer.zero_grad();
    ddp(input).square().mean().backward();
    optimizer.step();
  };
  const auto whole = measure(steps, step);
  Measured local{};
  {
    const auto guard = ddp.no_sync();
    local = measure(steps, step);
  }
  std::vector<torch::Tensor> buckets;
  for (const auto& bucket : ddp.bucket_layout().buckets) {
    std::int64_t elements = 0;
    for (const auto index : bucket) elements += ddp.parameters()[static_cast<std::size_t>(index)].numel();
    buckets.push_back(torch::zeros({elements}));
  }
  const auto alone = measure(steps, [&] {
    std::vector<torchup::Work> under_way;
    for (const auto& bucket : buckets) under_way.push_back(torchup::all_reduce_async(bucket, group));
    for (auto& work : under_way) work.wait();
  });
  if (group.rank() == 0)
    std::printf(R"({"step": %.1f, "cpu": %.1f, "local": %.1f, "reduction": %.1f, "buckets": %zu})"
                "\n",
                whole.p10, whole.cpu, local.p10, alone.p10, buckets.size());
  group.shutdown();
}
