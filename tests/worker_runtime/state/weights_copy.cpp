// weights_copy FROM TO: reads a file of weights that Python saved, writes its tensors as safetensors.
// weights_copy FROM TO PREFIX: loads it into a module first (a linear layer, a batch norm, a mask) and writes the
// module's; where that fails, it says so if the module is another one than before.
// Driven by weights_test.py.
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <torchup/safetensors.hpp>
#include <torchup/weights.hpp>

#include "tests/worker_runtime/test_program.hpp"

namespace weights_copy {

namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear{3, 2});
  torch::nn::BatchNorm1d bn = register_module("bn", torch::nn::BatchNorm1d{2});
  torch::Tensor mask = register_buffer("mask", torch::zeros({2}, torch::kBool));

  torchup::NamedTensors tensors() const {
    torchup::NamedTensors all;
    for (const auto& item : named_parameters()) all.emplace_back(item.key(), item.value());
    for (const auto& item : named_buffers()) all.emplace_back(item.key(), item.value());
    return all;
  }
};

void load(const char* path, NetImpl& net, const char* prefix) {
  torchup::NamedTensors before = net.tensors();
  for (auto& [name, tensor] : before) tensor = tensor.detach().clone();
  try {
    torchup::load_weights(path, net, prefix);
  } catch (...) {
    torchup::NamedTensors now = net.tensors();
    for (std::size_t i = 0; i < now.size(); ++i)
      if (!torch::equal(now[i].second, before[i].second))
        std::fprintf(stderr, "%s HAS CHANGED\n", now[i].first.c_str());
    throw;
  }
}

}  // namespace

int run_as_program(int argc, char** argv) try {
  torchup::NamedTensors tensors;
  if (argc == 4) {
    NetImpl net;
    load(argv[1], net, argv[3]);
    tensors = net.tensors();
  } else {
    for (const auto& [name, tensor] : torchup::load_tensors(argv[1])) tensors.emplace_back(name, tensor);
  }
  torchup::save_safetensors(argv[2], tensors, {{"written_by", "weights_copy"}});
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

const TestProgram program{"weights_copy", run_as_program};

}  // namespace weights_copy
