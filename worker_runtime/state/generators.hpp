#pragma once

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>

namespace torchup {

// The generators that programs draw from without naming them.

at::Generator cpu_generator();
/// That of the GPU that the module is on, if there is one and it is on one.
std::optional<at::Generator> gpu_generator(const torch::nn::Module* module);

torch::Tensor state_of(at::Generator generator);
void set_state(at::Generator generator, const torch::Tensor& state);
void set_seed(at::Generator generator, std::uint64_t seed);

}  // namespace torchup
