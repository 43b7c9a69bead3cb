#include "launcher/core/worker_count.hpp"

#include <algorithm>
#include <cmath>

namespace torchup {
namespace {

bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

/// A whole number as Python's int() takes it: blanks around it, a sign, single underscores between digits.
/// Nothing for other text; numbers beyond int are cut to its limits.
std::optional<int> python_int(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.empty() || text.front() == '_' || text.back() == '_' || text.find("__") != std::string_view::npos)
    return std::nullopt;
  constexpr long limit = 2'147'483'647;
  long value = 0;
  for (const char c : text) {
    if (c == '_') continue;
    if (c < '0' || c > '9') return std::nullopt;
    value = std::min(limit, value * 10 + (c - '0'));
  }
  return static_cast<int>(negative ? -value : value);
}

}  // namespace

Result<WorkerCountRule> parse_worker_count(std::string_view text) {
  using Kind = WorkerCountRule::Kind;
  if (const std::optional<int> number = python_int(text)) {
    if (*number < 1) return fail(errc::bad_value, "--nproc-per-node must be at least 1, got " + std::string{text});
    return WorkerCountRule{Kind::number, *number};
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
  switch (rule.kind) {
    case WorkerCountRule::Kind::number:
      return rule.number;
    case WorkerCountRule::Kind::cpu:
      return usable_cpus(cpus);
    case WorkerCountRule::Kind::automatic:
      return device_count > 0 ? device_count : usable_cpus(cpus);
    case WorkerCountRule::Kind::gpu:
      break;
  }
  if (device_count > 0) return device_count;
  const std::string reason = !gpus.problem.empty() ? gpus.problem
                             : gpus.list.empty()
                                 ? "the driver shows no GPU"
                                 : "CUDA_VISIBLE_DEVICES hides all of the " + std::to_string(gpus.list.size());
  return fail(errc::bad_value, "Cuda is not available. (" + reason + ")");
}

Result<OmpRule> parse_omp(std::string_view text) {
  if (text == "auto") return OmpRule{OmpRule::Kind::automatic, 1};
  const std::optional<int> number = python_int(text);
  if (number && *number >= 1) return OmpRule{OmpRule::Kind::number, *number};
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
  const std::string numbers = std::to_string(local_world_size) + " workers, but " + std::to_string(devices) +
                              (chosen_by_name ? (devices == 1 ? " GPU chosen by --gpus" : " GPUs chosen by --gpus")
                                              : (devices == 1 ? " visible GPU" : " visible GPUs"));
  return GpuShortage{chosen_by_name, numbers + "; --oversubscribe says that this is meant"};
}

}  // namespace torchup
