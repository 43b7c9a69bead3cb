#pragma once

#include <torch/torch.h>

#include <torchup/sync_batch_norm.hpp>

namespace fashion_mnist {

/// Two 3 x 3 convolutions with a shortcut around them (He et al. 2016, basic block).
class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(std::int64_t in_channels, std::int64_t out_channels, std::int64_t stride);
  torch::Tensor forward(const torch::Tensor& input);

 private:
  // In the order of Python's class: it is the order of parameters(). SyncBatchNorm is BatchNorm until it gets a group.
  torch::nn::Conv2d conv1_;
  torchup::SyncBatchNorm bn1_;
  torch::nn::Conv2d conv2_;
  torchup::SyncBatchNorm bn2_;
  torch::nn::Sequential shortcut_;  // empty where input and output have the same shape
};
TORCH_MODULE(Block);

/// A residual network for 28 x 28 grey images: one convolution and three blocks of 16, 32 and 64 channels.
///
/// Parameter names are those of examples/python/train_ddp.py, so that either program reads the other's weights.
class NetImpl : public torch::nn::Module {
 public:
  explicit NetImpl(std::int64_t classes = 10);
  /// [batch, 1, 28, 28] -> [batch, classes], not normalised.
  torch::Tensor forward(const torch::Tensor& images);

 private:
  torch::nn::Conv2d conv_;
  torchup::SyncBatchNorm bn_;
  Block block1_, block2_, block3_;
  torch::nn::Linear head_;
};
TORCH_MODULE(Net);

}  // namespace fashion_mnist
