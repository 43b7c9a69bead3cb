#pragma once

#include <torch/torch.h>

#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <torchup/torchup.hpp>
#include <utility>
#include <vector>

// What the scenarios of DistributedDataParallel train, and how their gradients are compared.

using torch::Tensor;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear in, out;
  NetImpl(int width, int outputs) : in{4, width}, out{width, outputs} {
    register_module("in", in);
    register_module("out", out);
  }
  Tensor forward(Tensor input) { return out(torch::tanh(in(input))); }
};
TORCH_MODULE(Net);

/// Two heads in all the ways that forward may return tensors.
struct Heads {
  Tensor main;
  std::vector<std::optional<Tensor>> others;
};
template <class Visit>
void for_each_tensor(Heads& heads, Visit&& visit) {
  visit(heads.main);
  visit(heads.others);
}
struct ManyImpl : torch::nn::Module {
  torch::nn::Linear a{4, 2}, b{4, 2};
  ManyImpl() {
    register_module("a", a);
    register_module("b", b);
  }
  std::pair<std::map<std::string, Heads>, int> forward(Tensor input, double factor) {
    return {{{"heads", Heads{a(input) * factor, {b(input), std::nullopt}}}}, 7};
  }
};
TORCH_MODULE(Many);

/// A parameter that lies in memory with gaps, beside one that does not; their gradients are numbers that 16 bits hold.
struct GapsImpl : torch::nn::Module {
  Tensor dense = register_parameter("dense", torch::ones({2, 4}));
  Tensor gaps = register_parameter("gaps", torch::ones({3, 8}).slice(1, 0, 8, 2));
  Tensor forward(Tensor input) {
    const Tensor weights = torch::arange(1, 4).to(torch::kFloat);
    return (torch::matmul(input, gaps.t()) * weights).sum() + (dense * input.square()).sum();
  }
};
TORCH_MODULE(Gaps);

/// Says no where a kernel on a GPU would.
struct PickyImpl : torch::nn::Module {
  torch::nn::Linear layer{4, 2};
  PickyImpl() { register_module("layer", layer); }
  Tensor forward(int, Tensor input) {
    TORCH_CHECK(input.device() == layer->weight.device(), "Expected all tensors to be on the same device");
    return layer(input);
  }
};
TORCH_MODULE(Picky);

/// Everything in which DDP differs by rank goes into this line, which must be the same on all ranks.
inline std::string fingerprint(const std::vector<Tensor>& tensors) {
  double sum = 0;
  for (const auto& tensor : tensors)
    sum += tensor.defined() ? tensor.detach().to(torch::kDouble).abs().sum().item<double>() : -1;
  std::ostringstream text;
  text.precision(17);
  text << sum;
  return text.str();
}
inline std::vector<Tensor> gradients(const torchup::DataParallelCore& ddp) {
  std::vector<Tensor> result;
  for (const auto& parameter : ddp.parameters()) result.push_back(parameter.grad());
  return result;
}
