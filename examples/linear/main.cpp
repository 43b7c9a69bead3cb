#include <torch/torch.h>

#include <cstdio>
#include <torchup/torchup.hpp>

int train(torchup::Worker& worker, std::span<char*>) {
  auto group = torchup::init_process_group();  // nccl where every worker has a GPU, else gloo
  torch::nn::Linear net{4, 1};
  net->to(worker.device());
  torchup::DistributedDataParallel ddp{net, group};  // from here on all workers have rank 0's weights
  torch::optim::SGD optimizer{ddp.parameters(), 0.1};
  for (int step = 0; step < 100; ++step) {
    auto input = torch::randn({32, 4}, worker.device());  // every worker its own batch
    auto loss = torch::mse_loss(ddp(input), input.sum(1, true));
    optimizer.zero_grad();
    loss.backward();  // gradients are averaged over all workers meanwhile
    optimizer.step();
    if (worker.rank() == 0 && step % 20 == 19) std::printf("step %3d: loss %.6f\n", step + 1, loss.item<float>());
  }
  return 0;
}

int main(int argc, char** argv) { return torchup::worker_main(argc, argv, train); }
