#include "worker_runtime/place/device_choice.hpp"

#include <catch2/catch.hpp>
#include <torchup/error.hpp>

using namespace torchup;
using Catch::Contains;

namespace {

constexpr auto cpu = DeviceWish::Kind::cpu;
constexpr auto gpu = DeviceWish::Kind::gpu;

WorkerPlace standing(int local_rank, int local_size) {
  return {.rank = local_rank,
          .world_size = local_size,
          .local_rank = local_rank,
          .local_size = local_size,
          .master_addr = {}};
}
VisibleGpus gpus(int count, std::optional<std::string> chosen = {}) { return {count, std::move(chosen)}; }

}  // namespace

TEST_CASE("all workers of a node choose alike: a GPU for each of them, or the CPU", "[worker_runtime][device]") {
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(own_gpu(standing(rank, 2), gpus(2)) == rank);
    CHECK(own_gpu(standing(rank, 2), gpus(8)) == rank);
    CHECK_FALSE(own_gpu(standing(rank, 2), gpus(1)));  // two workers on a machine with one
    CHECK_FALSE(own_gpu(standing(rank, 2), gpus(0)));
    CHECK_FALSE(own_gpu(standing(rank, 4), gpus(3)));
    CHECK(own_gpu(standing(rank, 2), gpus(1, "GPU-1")) == 0);  // the launcher shows each its own
    CHECK(own_gpu(standing(rank, 4), gpus(1, "3")) == 0);
    CHECK_FALSE(own_gpu(standing(rank, 2), gpus(1, "0,7")));  // one of two asked for is there: they share a list
  }
  CHECK(own_gpu(standing(0, 1), gpus(1)) == 0);
  CHECK(own_gpu(standing(3, 4), gpus(4, "0,1,2,3")) == 3);
}

TEST_CASE("what is offered to the other ranks follows device and backend", "[worker_runtime][device]") {
  const auto offers = [](const DeviceWish& wish, const VisibleGpus& seen) {
    const auto choice = choose_device(wish, standing(0, 1), seen);
    return std::string{choice.offers_nccl ? "nccl " : ""} + (choice.offers_gloo ? "gloo " : "") +
           (choice.gpu ? std::to_string(*choice.gpu) : "cpu");
  };
  CHECK(offers({}, gpus(1)) == "nccl gloo 0");
  CHECK(offers({}, gpus(0)) == "gloo cpu");
  CHECK(offers({.kind = cpu}, gpus(1)) == "gloo cpu");
  CHECK(offers({.kind = gpu}, gpus(2)) == "nccl gloo 0");
  CHECK(offers({.kind = gpu, .index = 1}, gpus(2)) == "nccl gloo 1");
  CHECK(offers({.kind = gpu, .backend = "gloo"}, gpus(2)) == "gloo 0");
  CHECK(offers({.backend = "nccl"}, gpus(1)) == "nccl 0");
  CHECK(offers({.backend = "gloo"}, gpus(1)) == "gloo 0");
}

TEST_CASE("a wish that cannot be is refused with the remedy", "[worker_runtime][device]") {
  const auto choose = [](const DeviceWish& wish, const VisibleGpus& seen) {
    return choose_device(wish, standing(1, 2), seen);
  };
  CHECK_THROWS_WITH(choose({.kind = cpu, .backend = "nccl"}, gpus(2)), Contains("device cpu") && Contains("gloo"));
  CHECK_THROWS_WITH(choose({.backend = "nccl"}, gpus(1)),
                    Contains("local rank 1 of 2 has no GPU of its own (1 visible)"));
  CHECK_THROWS_WITH(choose({.kind = gpu}, gpus(0)), Contains("device cuda") && Contains("one worker per GPU"));
  CHECK_THROWS_WITH(choose({.kind = gpu, .index = 2}, gpus(2)), Contains("cuda:2") && Contains("sees 2"));
  CHECK_THROWS_WITH(choose({.backend = "mpi"}, gpus(0)), Contains("without MPI"));
  CHECK_THROWS_WITH(choose({.backend = "ucc"}, gpus(0)), Contains("none of auto, gloo, nccl"));
}
