// What DistributedDataParallel costs a single GPU: ResNet-18, batch 64, in blocks of steps bare and wrapped by turns.
// usage: bench_ddp_gpu ROUNDS
// Prints one JSON object: {"bare": [ms per step and round], "ddp": [...]}, or {"skipped": why}.
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <torchup/torchup.hpp>
#include <vector>

namespace {

using torch::Tensor;
namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  BlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1{register_module("conv1",
                              nn::Conv2d{nn::Conv2dOptions{in, out, 3}.stride(stride).padding(1).bias(false)})},
        bn1{register_module("bn1", nn::BatchNorm2d{out})},
        conv2{register_module("conv2", nn::Conv2d{nn::Conv2dOptions{out, out, 3}.padding(1).bias(false)})},
        bn2{register_module("bn2", nn::BatchNorm2d{out})} {
    if (stride == 1 && in == out) return;
    shortcut->push_back(nn::Conv2d{nn::Conv2dOptions{in, out, 1}.stride(stride).bias(false)});
    shortcut->push_back(nn::BatchNorm2d{out});
    register_module("downsample", shortcut);
  }
  Tensor forward(const Tensor& input) {
    const Tensor inner = bn2(conv2(torch::relu(bn1(conv1(input)))));
    return torch::relu(inner + (shortcut->is_empty() ? input : shortcut->forward(input)));
  }
  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  nn::Sequential shortcut;
};
TORCH_MODULE(Block);

struct ResNet18Impl : nn::Module {
  ResNet18Impl() {
    body->push_back(nn::Conv2d{nn::Conv2dOptions{3, 64, 7}.stride(2).padding(3).bias(false)});
    body->push_back(nn::BatchNorm2d{64});
    body->push_back(nn::ReLU{});
    body->push_back(nn::MaxPool2d{nn::MaxPool2dOptions{3}.stride(2).padding(1)});
    int64_t channels = 64;
    for (const int64_t wide : {64, 128, 256, 512}) {
      body->push_back(Block{channels, wide, wide == 64 ? 1 : 2});
      body->push_back(Block{wide, wide, 1});
      channels = wide;
    }
    body->push_back(nn::AdaptiveAvgPool2d{1});
    body->push_back(nn::Flatten{});
    body->push_back(nn::Linear{512, 1000});
    register_module("body", body);
  }
  Tensor forward(const Tensor& images) { return body->forward(images); }
  nn::Sequential body;
};
TORCH_MODULE(ResNet18);

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  if (!torch::cuda::is_available()) {
    std::cout << R"({"skipped": "no GPU on this machine"})" << std::endl;
    return 0;
  }
  try {
    auto group = torchup::init_process_group({.backend = "nccl"});
    torch::manual_seed(1);
    ResNet18 bare, wrapped;
    bare->to(group.device());
    wrapped->to(group.device());
    torchup::DistributedDataParallel ddp{wrapped, group, {.gradient_as_bucket_view = true}};
    torch::optim::SGD bare_optimizer{bare->parameters(), 0.01}, ddp_optimizer{ddp.parameters(), 0.01};
    const Tensor images = torch::randn({64, 3, 224, 224}, group.device());
    const Tensor labels = torch::randint(0, 1000, {64}, torch::TensorOptions{group.device()}.dtype(torch::kLong));
    const auto block = [&](auto& forward, torch::optim::Optimizer& optimizer, int steps) {
      torch::cuda::synchronize();
      const auto begin = std::chrono::steady_clock::now();
      for (int step = 0; step < steps; ++step) {
        optimizer.zero_grad();
        torch::cross_entropy_loss(forward(images), labels).backward();
        optimizer.step();
      }
      torch::cuda::synchronize();
      return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / steps;
    };
    constexpr int steps = 30;
    block(bare, bare_optimizer, steps);  // cuDNN's choices, the rebuilt buckets
    block(ddp, ddp_optimizer, steps);
    std::vector<double> times[2];
    for (int round = 0; round < rounds; ++round) {
      times[0].push_back(block(bare, bare_optimizer, steps));
      times[1].push_back(block(ddp, ddp_optimizer, steps));
    }
    const auto list = [](const std::vector<double>& values) {
      std::string text;
      for (const double value : values) text += (text.empty() ? "[" : ", ") + std::to_string(value);
      return text + "]";
    };
    std::cout << R"({"bare": )" << list(times[0]) << R"(, "ddp": )" << list(times[1]) << "}" << std::endl;
    group.shutdown();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    std::_Exit(1);
  }
}
