#include "launcher/core/plan/descriptor_need.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace torchup {
namespace {

constexpr const char* remedy =
    "raise it (ulimit -Hn, LimitNOFILE= of a unit, --ulimit nofile= of a container) or start fewer";

}  // namespace

std::string descriptors_lacking(std::size_t hosts, std::uint64_t limit) {
  const std::uint64_t needed = agent_descriptors + host_descriptors * hosts;
  if (needed <= limit) return {};
  return fmt::format("{} hosts need {} open files in the launcher, and the hard limit is {}: {}", hosts, needed, limit,
                     remedy);
}

std::string descriptors_lacking(const LaunchConfig& plan, std::uint64_t limit) {
  const auto workers = static_cast<std::uint64_t>(plan.local_world_size);
  const std::uint64_t each = worker_descriptors + (plan.terms.max_nodes == 1 ? store_descriptors : 0) +
                             (plan.preload.empty() ? 0 : preload_descriptors);
  const std::uint64_t starts = std::min(workers, std::uint64_t{starts_at_once});
  const std::uint64_t needed = agent_descriptors + each * workers + start_descriptors * starts;
  if (needed <= limit) return {};
  return fmt::format("{} workers need {} open files in the launcher, and the hard limit is {}: {}", workers, needed,
                     limit, remedy);
}

}  // namespace torchup
