#pragma once

// The models of parity.py, layer by layer the same. `turn` is step + rank: branches follow it, so ranks differ.
#include <torch/torch.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace parity {

using torch::Tensor;

struct Model : torch::nn::Module {
  virtual std::tuple<Tensor, std::map<std::string, std::optional<Tensor>>> forward(Tensor input, int turn) = 0;
};
using Output = std::tuple<Tensor, std::map<std::string, std::optional<Tensor>>>;

struct Mlp : Model {
  torch::nn::Linear first{17, 33}, second{33, 29}, third{29, 5};
  Mlp() {
    register_module("first", first);
    register_module("second", second);
    register_module("third", third);
  }
  Output forward(Tensor input, int) override { return {third(torch::tanh(second(torch::tanh(first(input))))), {}}; }
};

/// Three dtypes, so that leftover buckets have an order to get wrong.
struct Mixed : Model {
  torch::nn::Linear single{17, 19}, wide{19, 23}, narrow{23, 7};
  Mixed() {
    register_module("single", single);
    register_module("wide", wide)->to(torch::kDouble);
    register_module("narrow", narrow)->to(torch::kBFloat16);
  }
  Output forward(Tensor input, int) override {
    auto hidden = torch::tanh(single(input)).to(torch::kDouble);
    return {narrow(torch::tanh(wide(hidden)).to(torch::kBFloat16)).to(torch::kFloat), {}};
  }
};

/// A channels_last weight, BatchNorm's buffers, a frozen parameter.
struct Convolution : Model {
  torch::nn::Conv2d first{torch::nn::Conv2dOptions(3, 8, 3)}, second{torch::nn::Conv2dOptions(8, 6, 3)};
  torch::nn::BatchNorm2d norm{8};
  torch::nn::Linear last{6 * 4 * 4, 5};
  Convolution() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
    register_module("last", last);
    first->to(torch::kFloat);
    for (auto& parameter : parameters())
      if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
    last->bias.set_requires_grad(false);
  }
  Output forward(Tensor input, int) override {
    auto hidden = torch::tanh(norm(first(input.view({-1, 3, 8, 8}))));
    return {last(torch::tanh(second(hidden)).flatten(1)), {}};
  }
};

/// Which of left and right is used follows `turn`; `never` is used by nobody; `aside` is an output outside of the loss.
struct Branches : Model {
  torch::nn::Linear in{17, 13}, left{13, 13}, right{13, 13}, never{13, 13}, aside{13, 3}, out{13, 5};
  Branches() {
    register_module("in", in);
    register_module("left", left);
    register_module("right", right);
    register_module("never", never);
    register_module("aside", aside);
    register_module("out", out);
  }
  Output forward(Tensor input, int turn) override {
    auto hidden = torch::tanh(in(input));
    hidden = torch::tanh(turn % 3 == 0 ? left(hidden) : turn % 3 == 1 ? right(hidden) : left(hidden) + right(hidden));
    return {out(hidden), {{"aside", aside(hidden)}, {"nothing", std::nullopt}}};
  }
};

/// The same graph in every step, but another one per rank: what static_graph may be used for.
struct Static : Model {
  torch::nn::Linear in{17, 13}, even{13, 13}, odd{13, 13}, never{13, 13}, out{13, 5};
  int rank;
  explicit Static(int its_rank) : rank{its_rank} {
    register_module("in", in);
    register_module("even", even);
    register_module("odd", odd);
    register_module("never", never);
    register_module("out", out);
  }
  Output forward(Tensor input, int) override {
    auto hidden = torch::tanh(in(input));
    hidden = torch::tanh(rank % 2 ? odd(hidden) : even(hidden));
    return {out(torch::tanh(in(input)*hidden)), {}};  // `in` is used twice
  }
};

/// One weight under two names: LibTorch lists it twice.
struct Tied : Model {
  torch::nn::Linear down{17, 17}, out{17, 5};
  std::shared_ptr<Module> up = std::make_shared<Module>();
  Tied() {
    register_module("down", down);
    register_module("up", up);
    up->register_parameter("weight", down->weight);
    up->register_parameter("bias", torch::zeros({17}));
    register_module("out", out);
  }
  Output forward(Tensor input, int) override {
    const auto shared = up->named_parameters();
    return {out(torch::tanh(torch::linear(torch::tanh(down(input)), shared["weight"], shared["bias"]))), {}};
  }
};

inline std::shared_ptr<Model> make_model(const std::string& name, int rank) {
  if (name == "mlp") return std::make_shared<Mlp>();
  if (name == "mixed") return std::make_shared<Mixed>();
  if (name == "convolution") return std::make_shared<Convolution>();
  if (name == "branches") return std::make_shared<Branches>();
  if (name == "static") return std::make_shared<Static>(rank);
  if (name == "tied") return std::make_shared<Tied>();
  throw std::invalid_argument{"no model " + name};
}

}  // namespace parity
