#include "net.hpp"

namespace fashion_mnist {
namespace {

torch::nn::Conv2d convolution(std::int64_t in_channels, std::int64_t out_channels, std::int64_t stride,
                              std::int64_t side = 3) {
  return torch::nn::Conv2d{
      torch::nn::Conv2dOptions(in_channels, out_channels, side).stride(stride).padding(side / 2).bias(false)};
}

}  // namespace

BlockImpl::BlockImpl(std::int64_t in_channels, std::int64_t out_channels, std::int64_t stride)
    : conv1_{register_module("conv1", convolution(in_channels, out_channels, stride))},
      bn1_{register_module("bn1", torchup::SyncBatchNorm{out_channels})}, conv2_{register_module(
                                                                              "conv2", convolution(out_channels,
                                                                                                   out_channels, 1))},
      bn2_{register_module("bn2", torchup::SyncBatchNorm{out_channels})} {
  if (stride != 1 || in_channels != out_channels)
    shortcut_ =
        torch::nn::Sequential{convolution(in_channels, out_channels, stride, 1), torchup::SyncBatchNorm{out_channels}};
  register_module("shortcut", shortcut_);
}

torch::Tensor BlockImpl::forward(const torch::Tensor& input) {
  const torch::Tensor inner = torch::relu(bn1_(conv1_(input)));
  const torch::Tensor around = shortcut_->is_empty() ? input : shortcut_->forward(input);
  return torch::relu(bn2_(conv2_(inner)) + around);
}

NetImpl::NetImpl(std::int64_t classes)
    : conv_{register_module("conv", convolution(1, 16, 1))}, bn_{register_module("bn", torchup::SyncBatchNorm{16})},
      block1_{register_module("block1", Block{16, 16, 1})}, block2_{register_module("block2", Block{16, 32, 2})},
      block3_{register_module("block3", Block{32, 64, 2})}, head_{register_module("head",
                                                                                  torch::nn::Linear{64, classes})} {}

torch::Tensor NetImpl::forward(const torch::Tensor& images) {
  const torch::Tensor stem = torch::relu(bn_(conv_(images)));
  const torch::Tensor features = block3_(block2_(block1_(stem)));
  return head_(features.mean({2, 3}));
}

}  // namespace fashion_mnist
