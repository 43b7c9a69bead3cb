#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "values.hpp"

// What the cases of toolkit_replay share.

std::vector<torch::Tensor> as_parameters(const std::vector<torch::Tensor>& tensors, torch::Device device = torch::kCPU);

/// The optimizer that the request names, over one or two groups; the second has its own learning rate.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Values& request, std::vector<torch::Tensor> parameters);

/// The rates and momenta of every group after the construction and each step. At reload_at a new optimizer and a new
/// scheduler take over from what was saved.
Values rates(const Values& request);
