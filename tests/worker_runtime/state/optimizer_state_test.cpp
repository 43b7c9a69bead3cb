#include "worker_runtime/state/optimizer_state.hpp"

#include <torch/optim/lbfgs.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

using namespace torchup;

TEST_CASE("options that are no numbers of JSON come back from a checkpoint", "[worker_runtime][checkpoint]") {
  const auto infinity = std::numeric_limits<double>::infinity();
  const auto value = GENERATE_COPY(infinity, -infinity, std::numeric_limits<double>::quiet_NaN(), 0.25, 1e300);
  const std::vector<torch::Tensor> parameters{torch::ones({2}, torch::requires_grad())};
  const torch::optim::LBFGS written{parameters, torch::optim::LBFGSOptions{0.5}.tolerance_grad(value)};
  NamedTensors tensors;
  const auto stored = nlohmann::json::parse(store_optimizer(written, {}, "optimizer", tensors).dump());

  torch::optim::LBFGS read{parameters};
  restore_optimizer(read, {}, "optimizer", stored, {});
  const auto& options = static_cast<const torch::optim::LBFGSOptions&>(read.param_groups()[0].options());
  REQUIRE(options.lr() == 0.5);
  REQUIRE((std::isnan(value) ? std::isnan(options.tolerance_grad()) : options.tolerance_grad() == value));
}
