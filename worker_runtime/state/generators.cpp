#include "worker_runtime/state/generators.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>

namespace torchup {

at::Generator cpu_generator() { return at::detail::getDefaultCPUGenerator(); }

std::optional<at::Generator> gpu_generator(const torch::nn::Module* module) {
  if (module == nullptr) return std::nullopt;
  for (const torch::Tensor& parameter : module->parameters()) {
    if (!parameter.is_cpu()) return at::globalContext().defaultGenerator(parameter.device());
  }
  return std::nullopt;
}

torch::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock{generator.mutex()};
  return generator.get_state();
}

void set_state(at::Generator generator, const torch::Tensor& state) {
  const std::lock_guard lock{generator.mutex()};
  generator.set_state(state.clone());
}

void set_seed(at::Generator generator, std::uint64_t seed) {
  const std::lock_guard lock{generator.mutex()};
  generator.set_current_seed(seed);
}

}  // namespace torchup
