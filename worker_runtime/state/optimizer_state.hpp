#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <torchup/safetensors.hpp>

namespace torchup {

/// Names of a module's parameters by their tensor; of one with two names the first.
using ParameterNames = std::map<const c10::TensorImpl*, std::string>;
ParameterNames parameter_names(const torch::nn::Module* module);

/// The name behind the prefix of the tensor that is an unknown optimizer's own archive. Its bytes are not the same in
/// two processes with the same state.
inline constexpr const char* own_archive = "own archive";

/// Takes an optimizer apart: its tensors go to `tensors` as PREFIX/<parameter>/<field>, its parameter groups with their
/// hyper-parameters are the result. State of LibTorch's and torchup's optimizers is stored field by field; any other
/// optimizer as its own archive, in one tensor of bytes.
nlohmann::json store_optimizer(const torch::optim::Optimizer& optimizer, const ParameterNames& names,
                               const std::string& prefix, NamedTensors& tensors);

/// The way back. Throws Error when the optimizer is of another kind, or its groups or parameters are others. `adopt`:
/// the tensors become the optimizer's own where they lie as its would; else they are copied.
void restore_optimizer(torch::optim::Optimizer& optimizer, const ParameterNames& names, const std::string& prefix,
                       const nlohmann::json& stored, const std::map<std::string, torch::Tensor>& tensors,
                       bool adopt = false);

}  // namespace torchup
