#include "worker_runtime/worker/template_torch.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>

#include "rendezvous/base/template_mark.hpp"

namespace torchup {
namespace {

std::uint64_t seed_at_start = 0;

std::uint64_t default_seed() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock{generator.mutex()};
  return generator.current_seed();
}

/// Before constructors of the program, which may seed it; behind the check of LibTorch's version. LibTorch's first seed
/// is random, so it tells whether anybody has given it another one since.
[[gnu::constructor(102)]] void note_first_seed() {
  if (std::getenv(template_variable) != nullptr) seed_at_start = default_seed();
}

}  // namespace

void try_to_compute() {
  const auto weights = torch::ones({256, 256}, torch::requires_grad());
  torch::ones({256, 256}).matmul(weights).sum().backward();
}

void draw_own_random_numbers() {
  if (default_seed() != seed_at_start) return;
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock{generator.mutex()};
  generator.seed();
}

}  // namespace torchup
