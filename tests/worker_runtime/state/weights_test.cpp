#include "torchup/weights.hpp"

#include <sys/stat.h>
#include <torch/nn/modules/linear.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <torchup/safetensors.hpp>

#include "tests/support/temporary_folder.hpp"

using namespace torchup;

namespace {

/// A model whose one child is called as the wrapper of Python's DDP calls the model.
struct Wrapping : torch::nn::Module {
  torch::nn::Linear module = register_module("module", torch::nn::Linear{2, 1});
};

struct File {
  test::TemporaryFolder folder;
  std::filesystem::path path() const { return folder.path / "w.safetensors"; }
};

}  // namespace

TEST_CASE("a prefix of Python's DDP is dropped, a child of that name is not", "[worker_runtime][weights]") {
  const File file;
  const auto wrapped = std::string{GENERATE("", "module.")};  // as the model saved itself, and as DDP saved it
  save_safetensors(file.path(), {{wrapped + "module.weight", torch::full({1, 2}, 3.0)},
                                 {wrapped + "module.bias", torch::full({1}, 4.0)}});
  Wrapping model;
  load_weights(file.path(), model);
  REQUIRE(model.module->weight[0][1].item<float>() == 3);
  REQUIRE(model.module->bias[0].item<float>() == 4);
}

TEST_CASE("a header may have any length, whatever its first bytes look like", "[worker_runtime][weights]") {
  const File file;
  const auto length = GENERATE(std::size_t{128}, std::size_t{0x4b50});  // the first bytes are a pickle's; "PK"
  const auto length_with = [&](const std::string& name) {
    save_safetensors(file.path(), {{name, torch::ones({2})}});
    return std::filesystem::file_size(file.path()) - 8 - 8;  // the length itself, and the data
  };
  REQUIRE(length_with(std::string(1 + length - length_with("w"), 'w')) == length);
  REQUIRE(load_tensors(file.path()).size() == 1);
}

TEST_CASE("what is no regular file is refused, and nobody is waited for", "[worker_runtime][weights]") {
  const File file;
  REQUIRE(::mkfifo(file.path().c_str(), 0600) == 0);  // and nobody writes into it
  for (const auto& path : {file.path(), file.folder.path})
    REQUIRE_THROWS_WITH(load_tensors(path), Catch::Contains(path.string() + " is no regular file"));
}
