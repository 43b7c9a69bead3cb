// Checkpoints of a program that is alone, as it uses them.
#include "torchup/checkpoint.hpp"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <torchup/error.hpp>

#include "tests/support/temporary_folder.hpp"
#include "worker_runtime/state/save_turn.hpp"

namespace checkpoint_test {

using namespace torchup;
using Catch::Contains;

TEST_CASE("two checkpoints of one program may have one folder, and write in the order of their saves",
          "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  const ProcessGroup group = init_process_group();
  torch::nn::Linear net{2, 1};
  const auto save = [&](Checkpoint& checkpoint, int step) {
    const torch::NoGradGuard no_grad;
    net->weight.fill_(step);
    checkpoint.save({.epoch = 0, .step = step}, net);
    net->weight.fill_(-1);
  };
  // As one of every epoch's end, and one of every hundred steps.
  Checkpoint often{place.path, group, {.keep_last = 0}}, seldom{place.path / ".", group, {.keep_last = 0}};
  std::optional<SaveTurn> slow{place.path};  // whoever writes just now
  save(often, 1);
  save(seldom, 2);
  const auto first = place.path / "step-000000000001";
  for (int look = 0; look < 200 && !std::filesystem::exists(first); ++look)
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  REQUIRE_FALSE(std::filesystem::exists(first));
  slow.reset();
  save(often, 3);
  save(seldom, 4);
  often.wait();
  seldom.wait();
  REQUIRE(std::filesystem::exists(first));
  REQUIRE(often.resume(net) == Position{.epoch = 0, .step = 4});
  REQUIRE(torch::equal(net->weight, torch::full({1, 2}, 4.0)));
}

TEST_CASE("saves into a folder stand in line", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place, another;
  std::optional<SaveTurn> first{place.path};
  auto second = std::make_unique<SaveTurn>(place.path.string() + "/../" + place.path.filename().string());
  const SaveTurn third{place.path};
  REQUIRE(first->is_next());
  REQUIRE(SaveTurn{another.path}.is_next());
  REQUIRE_FALSE(second->is_next());
  // One that leaves before its turn does not let the next one pass those before it.
  auto leaving = std::async(std::launch::async, [&] { second.reset(); });
  REQUIRE_FALSE(third.is_next());
  first.reset();
  leaving.get();
  REQUIRE(third.is_next());
}

TEST_CASE("a checkpoint of nothing, or of no step, is refused", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  Checkpoint checkpoint{place.path, init_process_group(), {.asynchronous = false}};
  torch::nn::Linear net{2, 1};
  REQUIRE_THROWS_WITH(checkpoint.save({.epoch = 0, .step = 1}), Contains("no parts"));
  REQUIRE_THROWS_WITH(checkpoint.save({.epoch = 0, .step = -1}, net), Contains("step -1"));
  checkpoint.save({.epoch = 0, .step = 1}, net);
  checkpoint.save({.epoch = 0, .step = 2});  // those that it had last
  REQUIRE(checkpoint.resume(net).step == 2);
}

}  // namespace checkpoint_test
