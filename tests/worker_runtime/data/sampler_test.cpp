#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <numeric>
#include <torchup/distributed_sampler.hpp>
#include <torchup/error.hpp>
#include <torchup/to_device.hpp>

using namespace torchup;

namespace {

using Indices = std::vector<std::size_t>;

Indices drain(DistributedSampler& sampler, std::size_t batch_size, std::size_t batches = 1000) {
  Indices all;
  for (; batches > 0; --batches) {
    const auto batch = sampler.next(batch_size);
    if (!batch) break;
    all.insert(all.end(), batch->begin(), batch->end());
  }
  return all;
}

/// Sample i is the number i.
class Numbers : public torch::data::datasets::Dataset<Numbers> {
 public:
  explicit Numbers(std::size_t count) : count_{count} {}
  torch::data::Example<> get(std::size_t index) override {
    const auto value = static_cast<std::int64_t>(index);
    return {torch::tensor(value), torch::tensor(-value)};
  }
  std::optional<std::size_t> size() const override { return count_; }

 private:
  std::size_t count_;
};

auto loader_of(std::size_t count, DistributedSampler sampler, std::size_t batch_size, std::size_t workers) {
  return torch::data::make_data_loader(Numbers{count}.map(torch::data::transforms::Stack<>()), std::move(sampler),
                                       torch::data::DataLoaderOptions().batch_size(batch_size).workers(workers));
}

}  // namespace

TEST_CASE("the loader's copy of a sampler follows set_epoch", "[worker_runtime][sampler]") {
  DistributedSampler sampler{10, 0, 1, {.seed = 3}};
  auto loader = loader_of(10, sampler, 4, 0);
  std::vector<Indices> epochs;
  for (const int epoch : {0, 1, 1}) {
    sampler.set_epoch(epoch);
    epochs.emplace_back();
    for (const auto& batch : *loader) {
      for (std::int64_t i = 0; i < batch.data.size(0); ++i) {
        epochs.back().push_back(static_cast<std::size_t>(batch.data[i].item<std::int64_t>()));
      }
    }
  }
  REQUIRE(epochs[0].size() == 10);
  REQUIRE(epochs[0] != epochs[1]);
  REQUIRE(epochs[1] == epochs[2]);
}

TEST_CASE("a position resumed with the same world size continues the very list", "[worker_runtime][sampler]") {
  const auto [size, world_size, drop_last] = GENERATE(
      table<std::size_t, int, bool>({{23, 3, false}, {23, 3, true}, {24, 3, false}, {7, 4, false}, {100, 1, false}}));
  for (int rank = 0; rank < world_size; ++rank) {
    const DistributedSamplerOptions options{.seed = 5, .drop_last = drop_last};
    DistributedSampler undisturbed{size, rank, world_size, options};
    undisturbed.set_epoch(2);
    const Indices whole = undisturbed.indices();

    DistributedSampler first{size, rank, world_size, options};
    first.set_epoch(2);
    first.reset();
    Indices got = drain(first, 2, 1);
    DistributedSampler second{size, rank, world_size, options};
    second.resume(first.position());
    second.set_epoch(2);  // as a training loop does; it must not forget the position
    second.reset();
    const Indices rest = drain(second, 2);
    got.insert(got.end(), rest.begin(), rest.end());
    CAPTURE(size, world_size, drop_last, rank);
    REQUIRE(got == whole);
    second.reset();  // the next pass is a whole one
    REQUIRE(drain(second, 2) == whole);
  }
}

TEST_CASE("with another world size nobody's sample is lost or had twice, padding apart", "[worker_runtime][sampler]") {
  const std::size_t size = 50;
  std::vector<int> seen(size, 0);
  SamplerPosition position;
  for (int rank = 0; rank < 4; ++rank) {
    DistributedSampler sampler{size, rank, 4, {.seed = 9}};
    sampler.set_epoch(1);
    sampler.reset();
    for (const std::size_t index : drain(sampler, 3, 2)) ++seen[index];  // 6 samples of each of 4 ranks
    position = sampler.position();
  }
  REQUIRE(position == SamplerPosition{1, 24, 9});
  std::size_t dealt = 0;
  for (int rank = 0; rank < 3; ++rank) {
    DistributedSampler sampler{size, rank, 3, {.seed = 9}};
    sampler.resume(position);
    sampler.reset();
    for (const std::size_t index : drain(sampler, 3)) {
      ++seen[index];
      ++dealt;
    }
    REQUIRE(sampler.position() == SamplerPosition{1, size, 9});
  }
  REQUIRE(dealt == 27);  // 26 were left, one is padding
  REQUIRE(std::ranges::all_of(seen, [](int count) { return count >= 1; }));
  REQUIRE(std::accumulate(seen.begin(), seen.end(), 0) == 24 + 27);
}

TEST_CASE("only delivered batches count when a loader's workers fetch ahead", "[worker_runtime][sampler]") {
  DistributedSampler sampler{40, 1, 2, {.shuffle = false}};
  auto loader = loader_of(40, sampler, 4, 2);
  std::size_t batches = 0;
  for (auto& batch : to_device(*loader, torch::kCPU, sampler)) {
    REQUIRE(batch.data[0].item<std::int64_t>() == static_cast<std::int64_t>(1 + 8 * batches));
    ++batches;
    REQUIRE(sampler.position().consumed == 8 * batches);
  }
  REQUIRE(batches == 5);
}

TEST_CASE("a new epoch begins at its beginning", "[worker_runtime][sampler]") {
  DistributedSampler sampler{12, 0, 2, {.shuffle = false}};
  sampler.resume({.epoch = 4, .consumed = 6, .seed = 0});
  REQUIRE(sampler.epoch() == 4);
  REQUIRE(sampler.indices() == Indices{6, 8, 10});
  sampler.set_epoch(5);
  REQUIRE(sampler.position() == SamplerPosition{5, 0, 0});
  sampler.reset();
  REQUIRE(drain(sampler, 100) == Indices{0, 2, 4, 6, 8, 10});
}

TEST_CASE("a position at an epoch's end leaves nothing of that epoch, and the next pass is whole",
          "[worker_runtime][sampler]") {
  const auto consumed = GENERATE(std::uint64_t{12}, std::uint64_t{11});  // with drop_last, one sample is nobody's
  DistributedSampler sampler{12, 0, 2, {.shuffle = false, .drop_last = true}};
  sampler.resume({.epoch = 4, .consumed = consumed, .seed = 0});
  SECTION("a loop that counts epochs is told that this one is over") {
    sampler.set_epoch(4);
    sampler.reset();
    REQUIRE(drain(sampler, 100).empty());
    sampler.set_epoch(5);
    sampler.reset();
  }
  SECTION("a loop that does not begins a pass, not an empty one") { sampler.reset(); }
  REQUIRE(drain(sampler, 100) == Indices{0, 2, 4, 6, 8, 10});
}

TEST_CASE("a position of another seed is refused", "[worker_runtime][sampler]") {
  DistributedSampler sampler{12, 0, 2, {.seed = 1}};
  REQUIRE_THROWS_WITH(sampler.resume({.epoch = 0, .consumed = 2, .seed = 2}), Catch::Contains("seed 2"));
}

TEST_CASE("a rank outside the world is refused", "[worker_runtime][sampler]") {
  REQUIRE_THROWS_AS((DistributedSampler{10, 2, 2}), Error);
  REQUIRE_THROWS_AS((DistributedSampler{10, -1, 2}), Error);
}
