#include "launcher/os/machine/cpus.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <filesystem>

#include "launcher/core/machine/cgroup_paths.hpp"
#include "launcher/os/io/read_text.hpp"

namespace torchup {
namespace {

constexpr std::size_t bits_per_word = sizeof(unsigned long) * CHAR_BIT;
constexpr std::size_t mask_words_max = 1'048'576 / bits_per_word;

std::optional<long> read_number(const std::string& path) {
  const std::string text = read_text(path);
  long number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} ? std::optional{number} : std::nullopt;
}

std::optional<CpuSet> read_list(const std::string& path) {
  const std::string text = read_text(path);
  if (text.empty()) return std::nullopt;
  auto cpus = parse_cpu_list(text);
  return cpus ? std::optional{std::move(cpus.value())} : std::nullopt;
}

Result<CpuSet> affinity_mask() {
  for (std::size_t words = 16;; words *= 4) {
    std::vector<unsigned long> mask(words);
    // The kernel refuses a mask that is shorter than its own with EINVAL.
    if (sched_getaffinity(0, words * sizeof(unsigned long), reinterpret_cast<cpu_set_t*>(mask.data())) != 0) {
      if (errno == EINVAL && words < mask_words_max) continue;
      return system_error("read the CPU affinity mask");
    }
    CpuSet cpus;
    for (std::size_t cpu = 0; cpu < words * bits_per_word; ++cpu) {
      if ((mask[cpu / bits_per_word] >> (cpu % bits_per_word)) & 1UL) cpus.insert(cpus.end(), static_cast<int>(cpu));
    }
    return cpus;
  }
}

/// The limit that this folder sets by itself, in CPUs.
std::optional<double> own_quota(const std::string& folder, int version) {
  if (version == 1) {
    const auto quota = read_number(folder + "/cpu.cfs_quota_us");  // -1: none
    const auto period = read_number(folder + "/cpu.cfs_period_us");
    if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
    return static_cast<double>(*quota) / static_cast<double>(*period);
  }
  const std::string text = read_text(folder + "/cpu.max");  // "max 100000" or "150000 100000"
  long quota = 0;
  long period = 0;
  const auto after_quota = std::from_chars(text.data(), text.data() + text.size(), quota);
  if (after_quota.ec != std::errc{} || after_quota.ptr == text.data() + text.size()) return std::nullopt;
  const auto after_period = std::from_chars(after_quota.ptr + 1, text.data() + text.size(), period);
  if (after_period.ec != std::errc{} || quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<double>(quota) / static_cast<double>(period);
}

std::optional<double> cpu_quota() {
  const auto own = cgroup_folder("cpu", read_text("/proc/self/cgroup"), read_text("/proc/self/mountinfo"));
  if (!own) return std::nullopt;
  std::optional<double> tightest;
  for (std::string folder = own->folder;; folder.erase(folder.rfind('/'))) {
    const std::optional<double> quota = own_quota(folder, own->version);
    if (quota) tightest = std::min(*quota, tightest.value_or(*quota));
    if (folder.size() <= own->mount.size()) return tightest;
  }
}

/// CPUs behind the highest-level cache of `folder` (…/cpuN/cache) that holds data.
CpuSet cache_group(const std::string& folder) {
  CpuSet group;
  long highest = -1;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator{folder, ignored}) {
    if (!entry.path().filename().string().starts_with("index")) continue;
    const std::string type = read_text(entry.path() / "type");
    if (!type.starts_with("Unified") && !type.starts_with("Data")) continue;
    const auto level = read_number(entry.path() / "level");
    if (!level || *level <= highest) continue;
    if (auto shared = read_list(entry.path() / "shared_cpu_list")) {
      highest = *level;
      group = std::move(*shared);
    }
  }
  return group;
}

}  // namespace

Result<Cpus> read_cpus() {
  auto mask = affinity_mask();
  if (!mask) return mask.error();
  Cpus cpus;
  cpus.allowed = std::move(mask.value());
  cpus.quota = cpu_quota();
  return cpus;
}

void read_topology(Cpus& cpus, const std::string& sysfs) {
  for (const int index : cpus.allowed) {
    const std::string folder = sysfs + "/devices/system/cpu/cpu" + std::to_string(index);
    Cpu cpu;
    cpu.package = static_cast<int>(read_number(folder + "/topology/physical_package_id").value_or(0));
    cpu.siblings = read_list(folder + "/topology/thread_siblings_list").value_or(CpuSet{index});
    cpu.cache_group = cache_group(folder + "/cache");
    // A machine that shows no caches: everything counts as behind one.
    if (cpu.cache_group.empty()) cpu.cache_group = cpus.allowed;
    cpus.cpus.emplace(index, std::move(cpu));
  }

  const std::string nodes = sysfs + "/devices/system/node/";
  for (const int node : read_list(nodes + "possible").value_or(CpuSet{})) {
    if (auto members = read_list(nodes + "node" + std::to_string(node) + "/cpulist"))
      cpus.nodes.emplace(node, std::move(*members));
  }
  if (cpus.nodes.empty()) cpus.nodes.emplace(0, cpus.allowed);  // a kernel without NUMA
}

int pci_numa_node(const std::string& pci, const std::string& sysfs) {
  return static_cast<int>(std::max(0L, read_number(sysfs + "/bus/pci/devices/" + pci + "/numa_node").value_or(0)));
}

AffinityMask::AffinityMask(const CpuSet& cpus) {
  const int highest = cpus.empty() ? 0 : *cpus.rbegin();
  words_.resize(static_cast<std::size_t>(highest) / bits_per_word + 1);
  for (const int cpu : cpus) {
    const auto index = static_cast<std::size_t>(cpu);
    words_[index / bits_per_word] |= 1UL << (index % bits_per_word);
  }
}

int AffinityMask::apply() const noexcept {
  const auto* mask = reinterpret_cast<const cpu_set_t*>(words_.data());
  return sched_setaffinity(0, words_.size() * sizeof(unsigned long), mask) == 0 ? 0 : errno;
}

}  // namespace torchup
