#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <torchup/fused_optimizers.hpp>
#include <torchup/zero_redundancy_optimizer.hpp>

#include "worker_runtime/group/group_state.hpp"

using namespace torchup;

namespace {

ProcessGroup group_of_one() {
  auto state = std::make_shared<ProcessGroup::State>();
  state->job = std::make_shared<const JobState>();
  state->global_ranks = {0};
  return ProcessGroup{std::move(state)};
}

}  // namespace

TEST_CASE("a parameter group that ZeRO does not know of is refused", "[worker_runtime][zero]") {
  ZeroRedundancyOptimizer<torch::optim::SGD> optimizer{
      {torch::ones({2}, torch::requires_grad())}, group_of_one(), torch::optim::SGDOptions{0.1}};
  REQUIRE_NOTHROW(optimizer.step());
  torch::optim::Optimizer& plain = optimizer;  // its add_param_group is no virtual function
  plain.add_param_group(torch::optim::OptimizerParamGroup{{torch::ones({2}, torch::requires_grad())}});
  REQUIRE_THROWS_WITH(plain.step(), Catch::Contains("made for 1 parameter groups and now has 2"));
}

TEST_CASE("a state in which a parameter has none takes away what it has", "[worker_runtime][zero]") {
  const auto parameter = torch::ones({2}, torch::requires_grad());
  ZeroRedundancyOptimizer<torch::optim::Adam> optimizer{{parameter}, group_of_one(), torch::optim::AdamOptions{0.1}};
  const StateDict before = optimizer.state_dict();
  const auto step = [&] {
    parameter.mutable_grad() = torch::full({2}, 2.0);
    optimizer.step();
    return parameter.detach().clone();
  };
  const torch::Tensor first = step();
  step();
  parameter.detach().fill_(1);
  optimizer.load_state_dict(before);
  REQUIRE(torch::equal(step(), first));
}

TEST_CASE("a parameter with gaps between its elements is refused by the fused kernels", "[worker_runtime][fused]") {
  const auto wide = torch::ones({4, 8});
  const auto part = wide.slice(1, 0, 4).detach().requires_grad_();
  FusedAdamW optimizer{{part}, FusedAdamWOptions{0.1}};
  part.mutable_grad() = torch::ones({4, 4});
  REQUIRE_THROWS_WITH(optimizer.step(), Catch::Contains("with gaps"));
  REQUIRE(torch::equal(wide, torch::ones({4, 8})));
}
