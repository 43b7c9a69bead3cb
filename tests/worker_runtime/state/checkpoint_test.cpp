// Checkpoints of a program that is alone, as it uses them.
#include "torchup/checkpoint.hpp"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <torchup/error.hpp>

#include "tests/support/temporary_folder.hpp"
#include "worker_runtime/state/shared_folder.hpp"

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
  std::optional<SaveTurn> slow{SharedFolder::of(place.path)};  // whoever writes just now
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
  std::optional<SaveTurn> first{SharedFolder::of(place.path)};
  auto second = std::make_unique<SaveTurn>(SharedFolder::of(place.path / "." / "../" / place.path.filename()));
  const SaveTurn third{SharedFolder::of(place.path)};
  const bool first_is_next = first->is_next(), second_is_next = second->is_next();
  const bool elsewhere_is_next = SaveTurn{SharedFolder::of(another.path)}.is_next();
  // One that leaves before its turn does not let the next one pass those before it.
  auto leaving = std::async(std::launch::async, [&] { second.reset(); });
  const auto left = leaving.wait_for(std::chrono::milliseconds{100});
  const bool third_is_next = third.is_next();
  first.reset();
  leaving.get();
  REQUIRE((first_is_next && elsewhere_is_next));
  REQUIRE_FALSE((second_is_next || third_is_next));
  REQUIRE(left == std::future_status::timeout);
  REQUIRE(third.is_next());
}

TEST_CASE("a resumption waits for what another checkpoint of the program is saving", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  const ProcessGroup group = init_process_group();
  torch::nn::Linear net{2, 1};
  Checkpoint first{place.path, group}, second{place.path, group};
  auto slow = std::make_unique<SaveTurn>(SharedFolder::of(place.path));
  second.save({.epoch = 0, .step = 1}, net);
  auto resuming = std::async(std::launch::async, [&] { return first.resume(net); });
  const auto waits = resuming.wait_for(std::chrono::milliseconds{100});
  slow.reset();
  const Position at = resuming.get();
  REQUIRE(waits == std::future_status::timeout);
  REQUIRE(at.step == 1);
}

TEST_CASE("what a resumption passed over is known to all checkpoints of the folder, as long as it is the same",
          "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  const ProcessGroup group = init_process_group();
  torch::nn::Linear net{2, 1};
  const CheckpointOptions keep_all{.keep_last = 0, .asynchronous = false};
  Checkpoint first{place.path, group, keep_all}, second{place.path, group, keep_all};
  for (int step = 1; step <= 3; ++step) first.save({.epoch = 0, .step = step}, net);
  const auto newest = place.path / "step-000000000003", file = newest / "training.safetensors";
  const auto bytes = std::filesystem::file_size(file);
  std::ofstream{file} << std::string(bytes, 'x');
  REQUIRE(first.resume(net).step == 2);
  SECTION("the other one saves an older step") {
    second.save({.epoch = 0, .step = 2}, net);
    REQUIRE_FALSE(std::filesystem::exists(newest));
  }
  SECTION("the other one has saved the step anew") {
    second.save({.epoch = 0, .step = 3}, net);
    first.save({.epoch = 0, .step = 4}, net);
    REQUIRE(std::filesystem::exists(newest));
    REQUIRE_THROWS_WITH(first.save({.epoch = 0, .step = 2}, net), Contains("holds step 4"));
  }
}

TEST_CASE("a part that does not give its state fails the save, and the next one says so",
          "[worker_runtime][checkpoint]") {
  struct Part {
    bool fails = true;
    StateDict state_dict() {
      if (fails) throw std::runtime_error{"no state yet"};
      return {};
    }
    void load_state_dict(const StateDict&) {}
  };
  const test::TemporaryFolder place;
  Checkpoint checkpoint{place.path, init_process_group()};
  torch::nn::Linear net{2, 1};
  Part part;
  REQUIRE_THROWS_WITH(checkpoint.save({.epoch = 0, .step = 1}, net, part), "no state yet");
  part.fails = false;
  // As the other ranks, which have learned it by now.
  try {
    checkpoint.save({.epoch = 0, .step = 2}, net, part);
    FAIL("it was saved");
  } catch (const Error& error) {
    REQUIRE(std::string{error.what()} == "no state yet");
  }
  checkpoint.save({.epoch = 0, .step = 3}, net, part);
  REQUIRE(checkpoint.resume(net, part).step == 3);
}

/// A save that goes on while static objects are destroyed, as that of a Checkpoint of static storage may.
struct LongSave {
  std::promise<void> end;
  std::future<void> writing;
  ~LongSave() {
    if (!writing.valid()) return;
    end.set_value();
    writing.get();
  }
} long_save;

// It is the exit code of this program that shows it.
TEST_CASE("a save may go on until the last static object of the program is gone", "[worker_runtime][checkpoint]") {
  if (long_save.writing.valid()) return;  // once more in this process
  const auto folder = std::filesystem::temp_directory_path();
  auto turn = std::make_unique<SaveTurn>(SharedFolder::of(folder));
  auto save = [folder, mine = std::move(turn), end = long_save.end.get_future()]() mutable {
    end.wait();
    mine.reset();
    const SaveTurn next{SharedFolder::of(folder)};
  };
  long_save.writing = std::async(std::launch::async, std::move(save));
}

TEST_CASE("a checkpoint of nothing, or of no step, is refused", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  Checkpoint checkpoint{place.path, init_process_group(), {.asynchronous = false}};
  torch::nn::Linear net{2, 1};
  REQUIRE_THROWS_WITH(checkpoint.save({.epoch = 0, .step = 1}), Contains("no parts"));
  const ProcessGroup group = init_process_group();
  DistributedDataParallel ddp{torch::nn::Linear{2, 1}, group};
  REQUIRE_THROWS_WITH(checkpoint.save({.epoch = 0, .step = 1}, ddp), Contains("the DDP wrapper alone"));
  REQUIRE_THROWS_WITH(checkpoint.save({.epoch = 0, .step = -1}, net), Contains("step -1"));
  checkpoint.save({.epoch = 0, .step = 1}, net);
  checkpoint.save({.epoch = 0, .step = 2});  // those that it had last
  REQUIRE(checkpoint.resume(net).step == 2);
}

}  // namespace checkpoint_test
