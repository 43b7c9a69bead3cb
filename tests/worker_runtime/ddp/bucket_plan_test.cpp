#include "worker_runtime/ddp/bucket_plan.hpp"

#include <catch2/catch.hpp>
#include <random>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "worker_runtime/ddp/flat_buffer.hpp"

using namespace torchup;

namespace {

constexpr std::int64_t mebibyte = 1 << 20;

BucketPlan plan(const std::vector<std::int64_t>& bytes, const std::vector<std::int64_t>& limits) {
  std::vector<PlannedTensor> tensors;
  for (const auto size : bytes) tensors.push_back({.key = {}, .bytes = size});
  return plan_buckets(tensors, limits, LeftoverOrder::by_first_tensor);
}

}  // namespace

TEST_CASE("a bucket closes when it reaches its limit", "[worker_runtime][bucket_plan]") {
  CHECK(plan({4, 4, 4}, {8}) == BucketPlan{{0, 1}, {2}});
  CHECK(plan({4, 3, 4}, {8}) == BucketPlan{{0, 1, 2}});
  CHECK(plan({100, 1}, {8}) == BucketPlan{{0}, {1}});
  CHECK(plan({1, 100, 1}, {8}) == BucketPlan{{0, 1}, {2}});
  CHECK(plan({}, {8}).empty());
}

TEST_CASE("limits are used one after the other and the last one repeats", "[worker_runtime][bucket_plan]") {
  CHECK(plan({2, 2, 2, 2, 2, 2, 2, 2}, {2, 4}) == BucketPlan{{0}, {1, 2}, {3, 4}, {5, 6}, {7}});
}

TEST_CASE("each kind of tensor has buckets and limits of its own", "[worker_runtime][bucket_plan]") {
  const BucketKey single{.dtype = 0, .device = 0, .hash = 1}, wide{.dtype = 1, .device = 0, .hash = 2};
  const std::vector<PlannedTensor> tensors{{single, 2}, {wide, 2}, {single, 2}, {wide, 2}, {single, 2}};
  const std::vector<std::int64_t> limits{2, 4};
  CHECK(plan_buckets(tensors, limits, LeftoverOrder::by_first_tensor) == BucketPlan{{0}, {1}, {2, 4}, {3}});
}

TEST_CASE("the limits are Python's", "[worker_runtime][bucket_plan]") {
  constexpr auto unlimited = std::numeric_limits<std::int64_t>::max();
  using Limits = std::vector<std::int64_t>;
  const auto usual = bucket_limits({});
  CHECK(usual.first == Limits{unlimited});
  CHECK(usual.rebuilt == Limits{mebibyte, 25 * mebibyte});
  const auto unused = bucket_limits({.find_unused_parameters = true});
  CHECK(unused.first == Limits{mebibyte, 25 * mebibyte});
  const auto given = bucket_limits({.cap_mb = 25, .cap_given = true, .find_unused_parameters = true});
  CHECK(given.first == Limits{25 * mebibyte});
  CHECK(bucket_limits({.cap_mb = 0.5, .cap_given = true}).rebuilt == Limits{mebibyte / 2});
  CHECK(bucket_limits({.find_unused_parameters = true, .static_graph = true}).first == Limits{unlimited});
  const auto listed = bucket_limits({.cap_mb_list = {0.5, 2}, .find_unused_parameters = true});
  CHECK(listed.first == Limits{mebibyte / 2, 2 * mebibyte});
  CHECK(listed.rebuilt == listed.first);
  const auto endless = bucket_limits({.cap_mb_list = {1, 1e300}});
  CHECK(endless.rebuilt == Limits{mebibyte, unlimited});
}

TEST_CASE("random models get the plan of c10d, leftover order included", "[worker_runtime][bucket_plan]") {
  std::mt19937 random{5};
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  constexpr std::array dtypes{torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf, torch::kComplexFloat};
  for (int round = 0; round < 500; ++round) {
    std::vector<NamedParameter> parameters;
    std::vector<torch::Tensor> tensors;
    std::vector<std::int64_t> indices;
    for (int index = 0, count = 1 + below(12); index < count; ++index) {
      tensors.push_back(torch::empty({below(9)}, dtypes[static_cast<std::size_t>(below(dtypes.size()))]));
      parameters.push_back({.name = "", .tensor = tensors.back()});
      indices.push_back(index);
    }
    std::vector<std::int64_t> limits;
    for (int count = 1 + below(3); count > 0; --count) limits.push_back(1 + below(60));
    const std::vector<std::size_t> their_limits{limits.begin(), limits.end()};
    const auto planned = planned_tensors(parameters, {});
    CHECK(plan_buckets(planned, limits, LeftoverOrder::by_first_tensor) ==
          std::get<0>(c10d::compute_bucket_assignment_by_size(tensors, their_limits)));
    CHECK(plan_buckets(planned, limits, LeftoverOrder::hashed) ==
          std::get<0>(c10d::compute_bucket_assignment_by_size(tensors, their_limits, {}, indices)));
  }
}
