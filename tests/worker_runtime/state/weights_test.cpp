#include "torchup/weights.hpp"

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
