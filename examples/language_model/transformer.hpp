#pragma once

#include <torch/torch.h>

#include <vector>

namespace language_model {

struct Shape {
  std::int64_t alphabet;      ///< different characters
  std::int64_t context = 64;  ///< characters that the model looks back
  std::int64_t width = 128;   ///< of a character's vector; a multiple of heads
  std::int64_t heads = 4;
  std::int64_t layers = 3;
};

/// Attention and a two-layer network, each with a shortcut around it and a LayerNorm before it.
class LayerImpl : public torch::nn::Module {
 public:
  explicit LayerImpl(const Shape& shape);
  /// [batch, time, width] -> the same.
  torch::Tensor forward(const torch::Tensor& input);

 private:
  torch::Tensor attend(const torch::Tensor& input);

  std::int64_t heads_;
  torch::nn::LayerNorm norm1_, norm2_;
  torch::nn::Linear query_key_value_, output_, wide_, narrow_;
};
TORCH_MODULE(Layer);

/// A decoder of characters: the vector at a place predicts the next character from those up to it.
class TransformerImpl : public torch::nn::Module {
 public:
  explicit TransformerImpl(const Shape& shape);
  /// int64 [batch, time <= context] -> [batch, time, alphabet], not normalised.
  torch::Tensor forward(const torch::Tensor& characters);

 private:
  torch::nn::Embedding character_, place_;
  std::vector<Layer> layers_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_;
};
TORCH_MODULE(Transformer);

}  // namespace language_model
