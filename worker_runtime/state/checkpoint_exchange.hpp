#pragma once

#include <torch/torch.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <torchup/process_group.hpp>
#include <torchup/state_dict.hpp>
#include <vector>

namespace torchup {

// What the ranks of a checkpoint tell each other. All are collective.

using Tensors = std::map<std::string, torch::Tensor>;

/// What each rank finds. Where one cannot, all throw what went wrong there: a rank that threw alone would leave the
/// others waiting for it.
std::vector<nlohmann::json> gather_facts(const ProcessGroup& group, const std::function<nlohmann::json()>& find);

/// Everybody's `row`, by rank, on the CPU.
torch::Tensor gather_rows(const torch::Tensor& row, const ProcessGroup& group);

/// Every rank's state on rank 0, by rank, on the CPU; empty on the others. One tensor travels at a time.
std::vector<StateDict> gather_states(const StateDict& mine, const ProcessGroup& group);

/// Sends what `root` loaded to everybody. GPUs' groups take it there one tensor at a time.
void send_tensors(Tensors& tensors, const ProcessGroup& group, int root);

}  // namespace torchup
