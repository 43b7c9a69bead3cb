#include "transformer.hpp"

#include <string>

namespace language_model {
namespace {

torch::nn::LayerNorm layer_norm(std::int64_t width) {
  return torch::nn::LayerNorm{torch::nn::LayerNormOptions{std::vector<std::int64_t>{width}}};
}

}  // namespace

LayerImpl::LayerImpl(const Shape& shape)
    : heads_{shape.heads}, norm1_{register_module("norm1", layer_norm(shape.width))}, norm2_{register_module(
                                                                                          "norm2",
                                                                                          layer_norm(shape.width))},
      query_key_value_{register_module("query_key_value", torch::nn::Linear{shape.width, 3 * shape.width})},
      output_{register_module("output", torch::nn::Linear{shape.width, shape.width})},
      wide_{register_module("wide", torch::nn::Linear{shape.width, 4 * shape.width})},
      narrow_{register_module("narrow", torch::nn::Linear{4 * shape.width, shape.width})} {}

torch::Tensor LayerImpl::attend(const torch::Tensor& input) {
  const auto batch = input.size(0), time = input.size(1), width = input.size(2);
  // [batch, time, 3 * width] -> three of [batch, heads, time, width / heads]
  const auto parts =
      query_key_value_(input).view({batch, time, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4}).unbind(0);
  const auto mixed =
      at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, /*dropout_p=*/0, /*is_causal=*/true);
  return output_(mixed.transpose(1, 2).reshape({batch, time, width}));
}

torch::Tensor LayerImpl::forward(const torch::Tensor& input) {
  const torch::Tensor attended = input + attend(norm1_(input));
  return attended + narrow_(torch::gelu(wide_(norm2_(attended))));
}

TransformerImpl::TransformerImpl(const Shape& shape)
    : character_{register_module("character", torch::nn::Embedding{shape.alphabet, shape.width})},
      place_{register_module("place", torch::nn::Embedding{shape.context, shape.width})},
      norm_{register_module("norm", layer_norm(shape.width))}, head_{register_module(
                                                                   "head",
                                                                   torch::nn::Linear{shape.width, shape.alphabet})} {
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    layers_.push_back(register_module("layer" + std::to_string(layer), Layer{shape}));
  const torch::NoGradGuard no_grad;
  for (auto& embedding : {character_, place_})
    embedding->weight.mul_(0.02);  // else the first loss is far above a guess
}

torch::Tensor TransformerImpl::forward(const torch::Tensor& characters) {
  const auto places = torch::arange(characters.size(1), characters.options());
  torch::Tensor state = character_->forward(characters) + place_->forward(places);
  for (auto& layer : layers_) state = layer(state);
  return head_(norm_(state));
}

}  // namespace language_model
