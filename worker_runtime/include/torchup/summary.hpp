#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace torchup {

class ProcessGroup;

/// What a model holds. Tensors that several modules share count once. No shapes of activations: a C++ module has no
/// hooks that would see them.
struct ModelSummary {
  struct Part {
    std::string name;  ///< of the module's direct child; "" for what the module itself registers
    std::string type;  ///< as the module calls itself
    int64_t parameters = 0;
    int64_t buffers = 0;
    int64_t bytes = 0;
  };
  std::vector<Part> parts;           ///< in the order of registration
  int64_t parameters = 0;            ///< elements
  int64_t trainable_parameters = 0;  ///< of these, with requires_grad
  int64_t buffers = 0;               ///< elements
  int64_t bytes = 0;                 ///< of parameters and buffers
};

ModelSummary summary(const torch::nn::Module& model);

/// A table, one line per part and one of totals.
std::ostream& operator<<(std::ostream& out, const ModelSummary& summary);

/// One line on what runs here: versions of torch, CUDA and NCCL, backend, world size, device and threads.
std::string banner(const ProcessGroup& group);

/// Prints banner(group) on rank 0, nothing elsewhere.
void print_banner(const ProcessGroup& group, std::ostream& out);

}  // namespace torchup
