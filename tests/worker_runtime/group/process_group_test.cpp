#include "torchup/process_group.hpp"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <limits>
#include <stdexcept>
#include <torchup/clip.hpp>
#include <torchup/distributed_data_parallel.hpp>

#include "worker_runtime/group/group_state.hpp"

using namespace torchup;

namespace {

struct CountingBackend : c10d::Backend {
  CountingBackend(int& shut_down, int& destroyed) : Backend{0, 2}, shut_down_{shut_down}, destroyed_{destroyed} {}
  ~CountingBackend() override { ++destroyed_; }
  void shutdown() override { ++shut_down_; }
  int& shut_down_;
  int& destroyed_;
};

ProcessGroup group_with(const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto state = std::make_shared<ProcessGroup::State>();
  state->name = std::string{"1"};  // g++ 12 warns of the literal
  state->job = std::make_shared<const JobState>();
  state->global_ranks = {0, 1};
  state->connection = std::make_unique<GroupConnection>(
      GroupConnection::Kind::nccl, GroupMembers{state->name, state->global_ranks}, [&] { return backend; });
  return ProcessGroup{std::move(state)};
}

}  // namespace

TEST_CASE("a group that is dropped is shut down before its backend goes", "[worker_runtime][process_group]") {
  int shut_down = 0, destroyed = 0;
  SECTION("at the end of its scope") {
    { const auto group = group_with(c10::make_intrusive<CountingBackend>(shut_down, destroyed)); }
    REQUIRE(shut_down == 1);
    REQUIRE(destroyed == 1);
  }
  SECTION("once, when the program did it itself") {
    {
      auto group = group_with(c10::make_intrusive<CountingBackend>(shut_down, destroyed));
      group.shutdown();
    }
    REQUIRE(shut_down == 1);
  }
  SECTION("not while an exception passes: peers may be gone, and the backend's end waits for them") {
    auto kept = c10::make_intrusive<CountingBackend>(shut_down, destroyed);
    try {
      const auto group = group_with(kept);
      throw std::runtime_error{"bad batch"};
    } catch (const std::runtime_error&) {
    }
    REQUIRE(shut_down == 0);
    REQUIRE(kept.use_count() == 2);  // left to the end of the process
  }
}

TEST_CASE("a backward pass before the first forward pass of DDP's is no part of a static graph",
          "[worker_runtime][ddp]") {
  const ProcessGroup group = init_process_group();
  torch::nn::Linear net{2, 1};
  DistributedDataParallelOptions options;
  options.static_graph = true;
  DistributedDataParallel ddp{net, group, options};
  int buckets = 0;
  ddp.register_comm_hook([&](const GradBucket& bucket) {
    ++buckets;
    return BucketReduction{.result = bucket.buffer(), .work = all_reduce_async(bucket.buffer(), group), .stages = {}};
  });
  net->forward(torch::ones({4, 2})).sum().backward();
  for (int step = 1; step <= 4; ++step) {
    ddp(torch::ones({4, 2})).sum().backward();
    REQUIRE(buckets == step);
  }
}

TEST_CASE("a hook may return a part of a tensor of its own", "[worker_runtime][ddp]") {
  const ProcessGroup group = init_process_group();
  torch::nn::Linear net{2, 1};
  DistributedDataParallel ddp{net, group};
  ddp.register_comm_hook([&](const GradBucket& bucket) {
    const auto packed = torch::cat({torch::full({1}, 77.0), bucket.buffer()});
    return BucketReduction{
        .result = packed.narrow(0, 1, bucket.buffer().numel()), .work = all_reduce_async(packed, group), .stages = {}};
  });
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    ddp(torch::full({1, 2}, 5.0)).sum().backward();
    REQUIRE(torch::equal(net->weight.grad(), torch::full({1, 2}, 5.0)));
    REQUIRE(torch::equal(net->bias.grad(), torch::ones({1})));
  }
}

TEST_CASE("the norm of gradients of a group is that of one, however large its exponent", "[worker_runtime][clip]") {
  const ProcessGroup group = init_process_group();
  const auto parameter = torch::ones({1}, torch::requires_grad());
  for (const double gradient : {10.0, 0.01, 0.0}) {
    parameter.mutable_grad() = torch::full({1}, gradient);
    const auto norm = clip_grad_norm_({parameter}, 1.0, group, {.norm_type = 40});
    REQUIRE(norm.item<double>() == Approx(gradient));
    REQUIRE(parameter.grad().item<double>() == Approx(std::min(gradient, 1.0)));
  }
}

TEST_CASE("an infinite gradient of a group takes the finite ones to 0, as in Python", "[worker_runtime][clip]") {
  const ProcessGroup group = init_process_group();
  const double infinity = std::numeric_limits<double>::infinity();
  const double norm_type = GENERATE(1.0, 2.0, std::numeric_limits<double>::infinity());
  const auto parameter = torch::ones({2}, torch::requires_grad());
  parameter.mutable_grad() = torch::tensor({3.0F, std::numeric_limits<float>::infinity()});
  REQUIRE(clip_grad_norm_({parameter}, 1.0, group, {.norm_type = norm_type}).item<double>() == infinity);
  REQUIRE(parameter.grad()[0].item<double>() == 0);
}
