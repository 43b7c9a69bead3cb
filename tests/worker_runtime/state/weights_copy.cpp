// weights_copy FROM TO: reads a file of weights that Python saved, writes its tensors as safetensors.
// weights_copy FROM TO PREFIX: loads it into a module first (a linear layer and a batch norm) and writes the module's.
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
};

}  // namespace

int run_as_program(int argc, char** argv) try {
  torchup::NamedTensors tensors;
  if (argc == 4) {
    NetImpl net;
    torchup::load_weights(argv[1], net, argv[3]);
    for (const auto& item : net.named_parameters()) tensors.emplace_back(item.key(), item.value());
    for (const auto& item : net.named_buffers()) tensors.emplace_back(item.key(), item.value());
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
