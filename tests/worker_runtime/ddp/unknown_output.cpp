// Must not compile: forward returns a type in which nobody has said where the tensors are.
#include <torch/torch.h>

#include <torchup/torchup.hpp>

struct Mine {
  torch::Tensor hidden;
};

struct NetImpl : torch::nn::Module {
  Mine forward(torch::Tensor input) { return {input}; }
};
TORCH_MODULE(Net);

Mine step(torchup::DistributedDataParallel<Net>& ddp) { return ddp(torch::ones({1})); }
