#include "worker_runtime/data/sampler_plan.hpp"

namespace torchup {

std::size_t samples_per_rank(std::size_t remaining, int world_size, bool drop_last) {
  const auto ranks = static_cast<std::size_t>(world_size);
  return drop_last ? remaining / ranks : (remaining + ranks - 1) / ranks;
}

std::vector<std::size_t> deal(std::span<const std::int64_t> order, std::size_t consumed, int rank, int world_size,
                              bool drop_last) {
  std::vector<std::size_t> indices;
  if (consumed >= order.size()) return indices;
  const std::size_t count = samples_per_rank(order.size() - consumed, world_size, drop_last);
  indices.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t place = consumed + static_cast<std::size_t>(rank) + i * static_cast<std::size_t>(world_size);
    indices.push_back(static_cast<std::size_t>(order[place % order.size()]));
  }
  return indices;
}

}  // namespace torchup
