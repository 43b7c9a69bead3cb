#include "launcher/core/plan/worker_count.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "launcher/core/options/option_values.hpp"
#include "launcher/core/text/python_numbers.hpp"

namespace torchup {
Result<WorkerCountRule> parse_worker_count(std::string_view text) {
  using Kind = WorkerCountRule::Kind;
  if (const std::optional<std::int64_t> number = python_int(text)) {
    if (*number < 1) return fail(errc::bad_value, fmt::format("--nproc-per-node must be at least 1, got {}", text));
    if (*number > local_workers_max) {
      return fail(errc::limit_exceeded, fmt::format("--nproc-per-node is at most {}, got {}", local_workers_max, text));
    }
    return WorkerCountRule{Kind::number, static_cast<int>(*number)};
  }
  if (text == "cpu") return WorkerCountRule{Kind::cpu, 1};
  if (text == "gpu") return WorkerCountRule{Kind::gpu, 1};
  if (text == "auto") return WorkerCountRule{Kind::automatic, 1};
  if (text == "xpu") return fail(errc::bad_value, "Xpu is not available.");
  return fail(errc::bad_value, "Unsupported nproc_per_node value: " + std::string{text});
}

int usable_cpus(const Cpus& cpus) {
  const int allowed = static_cast<int>(std::max<std::size_t>(cpus.allowed.size(), 1));
  if (!cpus.quota) return allowed;
  return std::clamp(static_cast<int>(std::ceil(std::min(*cpus.quota, 1e6))), 1, allowed);
}

int usable_cores(const Cpus& cpus, const CpuSet& allowed) {
  CpuSet cores;  // each by the smallest of its siblings
  for (const int cpu : allowed) {
    const auto known = cpus.cpus.find(cpu);
    cores.insert(known == cpus.cpus.end() || known->second.siblings.empty() ? cpu : *known->second.siblings.begin());
  }
  const int count = static_cast<int>(std::max<std::size_t>(cores.size(), 1));
  if (!cpus.quota) return count;
  return std::clamp(static_cast<int>(std::floor(std::min(*cpus.quota, 1e6))), 1, count);
}

Result<int> worker_count(const WorkerCountRule& rule, const Cpus& cpus, const Gpus& gpus,
                         const std::vector<Device>& devices, bool virtual_local_rank) {
  const int device_count = virtual_local_rank ? static_cast<int>(devices.size()) : usable_in_one_process(gpus, devices);
  // Where one is lost, the driver's list is empty: a node that is unfit for it may be looked at again when it is not.
  const bool lost = gpus.any_lost();
  switch (rule.kind) {
    case WorkerCountRule::Kind::number:
      return rule.number;
    case WorkerCountRule::Kind::cpu:
      return usable_cpus(cpus);
    case WorkerCountRule::Kind::automatic:
      if (device_count == 0 && lost) return static_cast<int>(gpus.facts.size());
      return device_count > 0 ? device_count : usable_cpus(cpus);
    case WorkerCountRule::Kind::gpu:
      break;
  }
  if (device_count == 0 && lost) return static_cast<int>(gpus.facts.size());
  if (device_count > 0) return device_count;
  const std::string reason = !gpus.problem.empty() ? gpus.problem
                             : gpus.list.empty()
                                 ? "the driver shows no GPU"
                                 : fmt::format("CUDA_VISIBLE_DEVICES hides all of the {}", gpus.list.size());
  return fail(errc::refused, fmt::format("Cuda is not available. ({})", reason));
}

Result<OmpRule> parse_omp(std::string_view text) {
  if (text == "auto") return OmpRule{OmpRule::Kind::automatic, 1};
  const std::optional<std::int64_t> number = python_int(text);
  if (number && *number >= 1 && *number <= omp_threads_max)
    return OmpRule{OmpRule::Kind::number, static_cast<int>(*number)};
  return fail(errc::bad_value, "--omp: expected 'auto' or a number of threads, got '" + std::string{text} + "'");
}

OmpChoice omp_num_threads(const OmpRule& rule, bool inherited, int local_world_size, int cores) {
  switch (rule.kind) {
    case OmpRule::Kind::automatic:
      return {std::to_string(std::max(1, cores / std::max(1, local_world_size))), false};
    case OmpRule::Kind::number:
      return {std::to_string(rule.number), false};
    case OmpRule::Kind::contract:
      break;
  }
  if (inherited || local_world_size <= 1) return {};
  return {"1", true};
}

std::optional<GpuShortage> gpu_shortage(int local_world_size, int devices, bool chosen_by_name, bool oversubscribe) {
  if (oversubscribe || devices == 0 || local_world_size <= devices) return std::nullopt;
  const std::string_view gpus = devices == 1 ? "GPU" : "GPUs";
  const std::string those = chosen_by_name ? fmt::format("{} chosen by --gpus", gpus) : fmt::format("visible {}", gpus);
  return GpuShortage{chosen_by_name, fmt::format("{} workers, but {} {}; --oversubscribe says that this is meant",
                                                 local_world_size, devices, those)};
}

}  // namespace torchup
