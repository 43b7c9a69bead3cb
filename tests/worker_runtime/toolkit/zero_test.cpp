#include <torch/torch.h>

#include <catch2/catch.hpp>
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
