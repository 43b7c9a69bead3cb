// The contenders of scripts/bench toolkit, interleaved; prints one JSON object a line: {"what": ..., "rounds": [...]}.
//
// usage: bench_toolkit optimizer|clip ROUNDS                       alone, all cores
//        torchup --nproc-per-node=2 bench_toolkit zero ROUNDS      two ranks, DDP
//        bench_toolkit data_parallel ROUNDS                        needs two GPUs

#include <torch/torch.h>

#include <torch/csrc/api/include/torch/nn/parallel/data_parallel.h>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <torchup/torchup.hpp>

namespace {

using torch::Tensor;
constexpr int64_t width = 2048, layers = 6;  // 25.2 million parameters

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    body = torch::nn::Sequential{};
    for (int64_t layer = 0; layer < layers; ++layer) {
      body->push_back(torch::nn::Linear{width, width});
      body->push_back(torch::nn::ReLU{});
    }
    register_module("body", body);
  }
  Tensor forward(const Tensor& input) { return body->forward(input); }
  torch::nn::Sequential body;
};
TORCH_MODULE(Net);

template <class Function>
double milliseconds(Function&& function) {
  const auto begin = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

void report(const std::string& what, const std::vector<double>& rounds) {
  std::cout << R"({"what": ")" << what << R"(", "rounds": [)";
  for (std::size_t i = 0; i < rounds.size(); ++i) std::cout << (i ? ", " : "") << rounds[i];
  std::cout << "]}" << std::endl;
}

void fill_gradients(torch::nn::Module& model) {
  for (Tensor& parameter : model.parameters()) parameter.mutable_grad() = torch::randn_like(parameter) * 1e-3;
}

void optimizer(int rounds) {
  Net plain_model, fused_model;
  fill_gradients(*plain_model);
  fill_gradients(*fused_model);
  torch::optim::AdamW plain{plain_model->parameters(), torch::optim::AdamWOptions{1e-3}};
  torchup::FusedAdamW fused{fused_model->parameters(), torchup::FusedAdamWOptions{1e-3}};
  std::vector<double> plain_ms, fused_ms;
  for (int round = -1; round < rounds; ++round) {  // the first one makes the states
    const double a = milliseconds([&] { plain.step(); }), b = milliseconds([&] { fused.step(); });
    if (round < 0) continue;
    plain_ms.push_back(a);
    fused_ms.push_back(b);
  }
  report("torch::optim::AdamW step", plain_ms);
  report("torchup::FusedAdamW step", fused_ms);
}

void clip(int rounds) {
  Net model;
  torchup::FusedAdamW optimizer{model->parameters(), torchup::FusedAdamWOptions{1e-4}};
  // 1,024 rows or tokens: little for a rank that trains 25 million parameters. Clipping costs the same whatever their
  // number.
  constexpr int64_t rows = 1024;
  const Tensor input = torch::randn({rows, width}), target = torch::randn({rows, width});
  std::vector<double> step_ms, clip_ms, scale_ms, libtorch_ms;
  for (int round = -1; round < rounds; ++round) {
    double within = 0;
    const double whole = milliseconds([&] {
      optimizer.zero_grad();
      torch::mse_loss(model->forward(input), target).backward();
      within = milliseconds([&] { torchup::clip_grad_norm_(model->parameters(), 1.0); });
      optimizer.step();
    });
    // The same gradients again, so that they really are scaled; and LibTorch's own function.
    const double scaling = milliseconds([&] { torchup::clip_grad_norm_(model->parameters(), 1e-3); });
    const double libtorch = milliseconds([&] { torch::nn::utils::clip_grad_norm_(model->parameters(), 1e-4); });
    if (round < 0) continue;
    step_ms.push_back(whole - within);
    clip_ms.push_back(within);
    scale_ms.push_back(scaling);
    libtorch_ms.push_back(libtorch);
  }
  report("step without clipping", step_ms);
  report("clip, norm below the limit", clip_ms);
  report("clip, norm above the limit", scale_ms);
  report("torch::nn::utils::clip_grad_norm_, above", libtorch_ms);
}

double state_bytes(const torch::optim::Optimizer& optimizer) {
  double bytes = 0;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto& adam = static_cast<const torchup::FusedAdamState&>(*state);
    for (const Tensor& tensor : {adam.exp_avg, adam.exp_avg_sq, adam.step})
      bytes += static_cast<double>(tensor.nbytes());
  }
  return bytes;
}

void zero(int rounds) {
  auto group = torchup::init_process_group();
  at::set_num_threads(std::max(1, at::get_num_threads() / group.local_size()));
  const auto device = group.device();
  Net full_model, zero_model;
  full_model->to(device);
  zero_model->to(device);
  torchup::DistributedDataParallel full_ddp{full_model, group, {.gradient_as_bucket_view = true}};
  torchup::DistributedDataParallel zero_ddp{zero_model, group, {.gradient_as_bucket_view = true}};
  torchup::FusedAdamW full{full_ddp.parameters(), torchup::FusedAdamWOptions{1e-4}};
  torchup::ZeroRedundancyOptimizer<torchup::FusedAdamW> sharded{
      zero_ddp.parameters(), group, torchup::FusedAdamWOptions{1e-4}, {.parameters_as_bucket_view = true}};
  const Tensor input = torch::randn({64, width}, device), target = torch::randn({64, width}, device);
  std::vector<double> full_ms, zero_ms;
  const auto step = [&](auto& ddp, auto& optimizer) {
    torchup::barrier(group);
    return milliseconds([&] {
      optimizer.zero_grad();
      torch::mse_loss(ddp(input), target).backward();
      optimizer.step();
      torchup::barrier(group);  // the slowest rank's time
    });
  };
  for (int round = -2; round < rounds; ++round) {
    const double a = step(full_ddp, full), b = step(zero_ddp, sharded);
    if (round < 0) continue;  // states, and DDP's rebuilt buckets
    full_ms.push_back(a);
    zero_ms.push_back(b);
  }
  if (group.rank() == 0) {
    report("step, DDP and FusedAdamW", full_ms);
    report("step, DDP and ZeRO-1", zero_ms);
    report("state bytes, FusedAdamW", {state_bytes(full)});
    report("state bytes, ZeRO-1", {state_bytes(sharded.local())});
  }
  group.shutdown();
}

void data_parallel(int rounds) {
  if (torch::cuda::device_count() < 2) {
    std::cout << R"({"skipped": "DataParallel needs a machine with two GPUs; this one has )"
              << static_cast<int>(torch::cuda::device_count()) << R"("})" << std::endl;
    return;
  }
  Net model;
  model->to(torch::kCUDA);
  torchup::FusedAdamW optimizer{model->parameters(), torchup::FusedAdamWOptions{1e-4}};
  const Tensor input = torch::randn({128, width}, torch::kCUDA), target = torch::randn({128, width}, torch::kCUDA);
  std::vector<double> times;
  for (int round = -2; round < rounds; ++round) {
    const double took = milliseconds([&] {
      optimizer.zero_grad();
      torch::mse_loss(torch::nn::parallel::data_parallel(model, input), target).backward();
      optimizer.step();
      torch::cuda::synchronize();
    });
    if (round >= 0) times.push_back(took);
  }
  report("step, torch::nn::parallel::data_parallel on all GPUs", times);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  try {
    torch::manual_seed(1);
    if (mode == "optimizer") return optimizer(rounds), 0;
    if (mode == "clip") return clip(rounds), 0;
    if (mode == "zero") return zero(rounds), 0;
    if (mode == "data_parallel") return data_parallel(rounds), 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    std::_Exit(1);
  }
  std::cerr << "usage: bench_toolkit optimizer|clip|zero|data_parallel ROUNDS\n";
  return 2;
}
