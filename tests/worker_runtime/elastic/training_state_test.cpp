#include "worker_runtime/elastic/training_state.hpp"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <torchup/lr_scheduler.hpp>

#include "worker_runtime/elastic/state_image.hpp"
#include "worker_runtime/elastic/tensor_wire.hpp"

namespace training_state_test {

using namespace torchup;

/// A small program's parts, and one step of it.
struct Program {
  torch::nn::Sequential net{torch::nn::Linear{3, 3}, torch::nn::BatchNorm1d{3}, torch::nn::Linear{3, 1}};
  torch::optim::Adam optimizer{net->parameters(), torch::optim::AdamOptions{0.1}};
  LrScheduler scheduler{optimizer, StepLR{.step_size = 1, .gamma = 0.5}};
  DistributedSampler sampler{12, 0, 1, {.shuffle = true}};
  TrainingState state{CheckpointParts::of(net, optimizer, scheduler, sampler), true};

  void half_a_step() {
    sampler.reset();
    sampler.next(2);
    net->forward(torch::randn({4, 3})).sum().backward();
    scheduler.step();
  }
  void step() {
    half_a_step();
    state.step_begins();
    optimizer.step();
  }
  double rate() { return optimizer.param_groups()[0].options().get_lr(); }
  std::vector<torch::Tensor> buffers() const {
    std::vector<torch::Tensor> copies;
    for (const auto& buffer : net->buffers()) copies.push_back(buffer.clone());
    return copies;
  }
};

bool equal(const std::vector<torch::Tensor>& one, const std::vector<torch::Tensor>& other) {
  return std::ranges::equal(one, other, [](const auto& a, const auto& b) { return torch::equal(a, b); });
}

TEST_CASE("a step that was interrupted is taken back, but for parameters and optimizers' tensors",
          "[worker_runtime][elastic]") {
  Program program;
  program.state.begin({});
  program.step();
  REQUIRE_FALSE(program.state.is_clean());
  program.state.commit({.epoch = 0, .step = 1});
  REQUIRE(program.state.is_clean());
  const auto buffers = program.buffers();
  const double rate = program.rate();
  const SamplerPosition position = program.sampler.position();
  const auto numbers = torch::rand({3});
  const auto sum = checksum(program.state);
  program.state.restore();
  REQUIRE(torch::equal(torch::rand({3}), numbers));

  for (int again = 0; again < 2; ++again) {
    program.half_a_step();
    REQUIRE(program.rate() != rate);
    REQUIRE_FALSE(equal(program.buffers(), buffers));
    REQUIRE(program.sampler.position() != position);
    program.state.restore();
    REQUIRE(equal(program.buffers(), buffers));
    REQUIRE(program.rate() == rate);
    REQUIRE(program.scheduler.last_lr() == std::vector{rate});
    REQUIRE(program.sampler.position() == position);
    REQUIRE(torch::equal(torch::rand({3}), numbers));
    for (const auto& parameter : program.net->parameters()) REQUIRE_FALSE(parameter.grad().defined());
  }
  REQUIRE(checksum(program.state) == sum);
  REQUIRE(program.state.position() == Position{.epoch = 0, .step = 1});
  program.step();
  program.state.restore();
  REQUIRE_FALSE(program.state.is_clean());  // parameters stay as the step has left them
  REQUIRE(checksum(program.state) != sum);
}

TEST_CASE("what was loaded is what a round that ends early goes back to", "[worker_runtime][elastic]") {
  Program program;
  program.state.begin({});
  program.half_a_step();  // as a checkpoint's part would be read into it
  program.state.loaded({.epoch = 1, .step = 9});
  const auto buffers = program.buffers();
  const double rate = program.rate();
  const SamplerPosition position = program.sampler.position();
  program.half_a_step();
  program.state.restore();
  REQUIRE(equal(program.buffers(), buffers));
  REQUIRE(program.rate() == rate);
  REQUIRE(program.sampler.position() == position);
  REQUIRE(program.state.position() == Position{.epoch = 1, .step = 9});
}

TEST_CASE("a buffer that a forward pass has made larger is as it was", "[worker_runtime][elastic]") {
  torch::nn::Linear net{2, 2};
  torch::Tensor cache = net->register_buffer("cache", torch::zeros({2}));
  TrainingState state{CheckpointParts::of(net), true};
  for (int again = 0; again < 2; ++again) {
    state.commit({});
    cache.set_data(torch::ones({5}));
    state.restore();
    REQUIRE(torch::equal(cache, torch::zeros({2})));
    cache.add_(1);
    state.restore();
    REQUIRE(torch::equal(cache, torch::zeros({2})));  // nothing is shared with what is kept
  }
}

TEST_CASE("the numbers of a step are a function of seed and position alone", "[worker_runtime][elastic]") {
  torch::nn::Linear net{2, 2};
  const auto drawn = [&](std::uint64_t seed, int steps) {
    torch::rand({steps});  // what was drawn before does not matter
    TrainingState state{CheckpointParts::of(net), true};
    state.begin(seed);
    for (int step = 1; step <= steps; ++step) state.commit({.epoch = 0, .step = step});
    return torch::rand({4});
  };
  REQUIRE(torch::equal(drawn(42, 3), drawn(42, 3)));
  REQUIRE_FALSE(torch::equal(drawn(42, 3), drawn(42, 4)));
  REQUIRE_FALSE(torch::equal(drawn(42, 3), drawn(43, 3)));
}

TEST_CASE("a checkpoint that was loaded is where all begin", "[worker_runtime][elastic]") {
  Program program;
  REQUIRE(program.state.is_fresh());
  program.state.begin(1);
  program.step();
  program.state.commit({.epoch = 0, .step = 1});
  REQUIRE(program.state.commits() == 1);
  REQUIRE_FALSE(program.state.is_fresh());
  program.state.step_begins();
  program.state.loaded({.epoch = 2, .step = 9});
  REQUIRE(program.state.commits() == 0);
  REQUIRE(program.state.is_clean());
  REQUIRE(program.state.position() == Position{.epoch = 2, .step = 9});
}

TEST_CASE("equal bits have equal sums, and others do not", "[worker_runtime][elastic]") {
  using Some = std::vector<torch::Tensor>;
  const torch::Tensor one = torch::randn({5, 3});
  REQUIRE(checksum(Some{one}) == checksum(Some{one.clone()}));
  REQUIRE(checksum(Some{one}) == checksum(Some{one.t().contiguous().t()}));
  for (const std::int64_t place : {0, 7, 14}) {
    torch::Tensor other = one.clone();
    other.view({-1}).view(torch::kInt32)[place].bitwise_xor_(1);
    REQUIRE(checksum(Some{one}) != checksum(Some{other}));
    REQUIRE(checksum(Some{one, other}) != checksum(Some{other, one}));
  }
  REQUIRE(checksum(Some{torch::zeros({2})}) != checksum(Some{torch::zeros({2}), torch::zeros({0})}));
  for (const auto dtype : {torch::kBool, torch::kBFloat16, torch::kComplexFloat, torch::kInt8, torch::kDouble}) {
    const torch::Tensor ones = torch::ones({9}, dtype);
    REQUIRE(checksum(Some{ones.slice(0, 1)}) == checksum(Some{torch::ones({8}, dtype)}));
    REQUIRE(checksum(Some{torch::ones({}, dtype)}) != checksum(Some{torch::zeros({}, dtype)}));
  }
}

}  // namespace training_state_test
