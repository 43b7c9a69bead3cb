#include "worker_runtime/state/checkpoint_folder.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <torchup/error.hpp>

using namespace torchup;

namespace {

/// A folder that goes with the test.
struct Folder {
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "torchup-checkpoint-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

CheckpointContent content_of(std::int64_t step) {
  return {.facts = {{"step", step}}, .model = {{"weight", torch::ones({2})}}, .training = {}};
}

}  // namespace

TEST_CASE("what a crashed writer left goes before a new checkpoint needs its room", "[worker_runtime][checkpoint]") {
  const Folder place;
  const CheckpointFolder folder{place.path};
  folder.save(content_of(1), 3, {});
  const auto left_over = place.path / "step-000000000007.tmp-99999999";
  std::filesystem::create_directory(left_over);
  std::ofstream{left_over / "model.safetensors"} << "half of it";

  CheckpointContent broken = content_of(2);
  broken.model.emplace_back("undefined", torch::Tensor{});
  REQUIRE_THROWS_AS(folder.save(broken, 3, {}), Error);
  REQUIRE_FALSE(std::filesystem::exists(left_over));
  REQUIRE(std::distance(std::filesystem::directory_iterator{place.path}, {}) == 1);  // nothing of the failed one either
  REQUIRE(torch::equal(folder.load(1).model.at("weight"), torch::ones({2})));
}

// In a container that was started again, every process has the number of the one that crashed.
TEST_CASE("what a crashed writer of our number left is not in the way", "[worker_runtime][checkpoint]") {
  const Folder place;
  const CheckpointFolder folder{place.path};
  std::ofstream{place.path / ("step-000000000001.tmp-" + std::to_string(::getpid()))} << "no folder";
  folder.save(content_of(1), 3, {});
  REQUIRE(std::distance(std::filesystem::directory_iterator{place.path}, {}) == 1);
  REQUIRE(torch::equal(folder.load(1).model.at("weight"), torch::ones({2})));
}
