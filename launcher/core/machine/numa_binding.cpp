#include "launcher/core/machine/numa_binding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace torchup {
namespace {

/// CPUs by core or by cache, each group under its smallest CPU, smallest first.
using Groups = std::map<int, CpuSet>;

template <class KeyOf>
Groups group_by(const CpuSet& cpus, KeyOf key_of) {
  Groups groups;
  for (const int cpu : cpus) {
    const CpuSet* together = key_of(cpu);
    groups[together && !together->empty() ? *together->begin() : cpu].insert(cpu);
  }
  return groups;
}

const Cpu* find_cpu(const Cpus& cpus, int index) {
  const auto found = cpus.cpus.find(index);
  return found == cpus.cpus.end() ? nullptr : &found->second;
}

int package_of(const Cpus& cpus, int index) {
  const Cpu* cpu = find_cpu(cpus, index);
  return cpu ? cpu->package : 0;
}

CpuSet socket_cpus(const Cpus& cpus, const CpuSet& own) {
  const int package = package_of(cpus, *own.begin());
  CpuSet all;
  for (const auto& [node, members] : cpus.nodes) {
    const CpuSet allowed = intersection(members, cpus.allowed);
    if (!allowed.empty() && package_of(cpus, *allowed.begin()) == package) all.insert(allowed.begin(), allowed.end());
  }
  return all;
}

Result<CpuSet> exclusive_cpus(const Cpus& cpus, const CpuSet& own, int node, std::size_t place, std::size_t gpus) {
  const Groups cores = group_by(own, [&cpus](int index) {
    const Cpu* cpu = find_cpu(cpus, index);
    return cpu ? &cpu->siblings : nullptr;
  });
  const std::size_t each = cores.size() / gpus;
  const std::size_t extra = cores.size() % gpus;
  if (each == 0) {
    return fail(errc::bad_value, fmt::format("There are only {} physical cores on numa_node_index={}, but there are {} "
                                             "devices associated with this NUMA node.",
                                             cores.size(), node, gpus));
  }
  auto core = std::next(cores.begin(), static_cast<std::ptrdiff_t>(place * each + std::min(place, extra)));
  CpuSet share;
  for (std::size_t left = each + (place < extra ? 1 : 0); left > 0; --left, ++core) {
    share.insert(core->second.begin(), core->second.end());
  }
  return share;
}

CpuSet cache_cpus(const Cpus& cpus, const CpuSet& own, std::size_t place) {
  const Groups by_cache = group_by(own, [&cpus](int index) {
    const Cpu* cpu = find_cpu(cpus, index);
    return cpu ? &cpu->cache_group : nullptr;
  });
  std::vector<CpuSet> groups;
  for (const auto& [smallest, members] : by_cache) groups.push_back(members);
  std::stable_sort(groups.begin(), groups.end(), [](const CpuSet& a, const CpuSet& b) { return a.size() > b.size(); });
  return groups[place % groups.size()];
}

}  // namespace

Result<NumaBinding> parse_numa_binding(std::string_view text) {
  if (text == "node") return NumaBinding::node;
  if (text == "socket") return NumaBinding::socket;
  if (text == "exclusive") return NumaBinding::exclusive;
  if (text == "core-complex") return NumaBinding::core_complex;
  return fail(errc::bad_value, "invalid choice: '" + std::string{text} +
                                   "' (choose from 'node', 'socket', 'exclusive', 'core-complex')");
}

Result<CpuSet> numa_cpus(NumaBinding mode, LocalRank local_rank, const Cpus& cpus,
                         const std::vector<int>& device_nodes) {
  if (device_nodes.empty()) return fail(errc::bad_value, "No accelerator available for NUMA binding");
  const auto device = static_cast<std::size_t>(local_rank.value());
  if (device >= device_nodes.size()) {
    return fail(errc::bad_value,
                fmt::format("NUMA binding: local rank {} has no GPU, only {} visible", device, device_nodes.size()));
  }
  const int node = device_nodes[device];
  const auto members = cpus.nodes.find(node);
  if (members == cpus.nodes.end()) {
    return fail(errc::bad_value, fmt::format("Could not determine CPUs corresponding to numa_node_index={}.", node));
  }
  const CpuSet own = intersection(members->second, cpus.allowed);
  if (own.empty()) {
    return fail(
        errc::bad_value,
        fmt::format(
            "Must bind to a non-empty set of CPU indices: none of NUMA node {} (CPUs {}) is in our affinity mask {}",
            node, to_cpu_list(members->second), to_cpu_list(cpus.allowed)));
  }

  // Among the GPUs of this node: how many, and how many before this one.
  const auto gpus = static_cast<std::size_t>(std::count(device_nodes.begin(), device_nodes.end(), node));
  const auto place = static_cast<std::size_t>(
      std::count(device_nodes.begin(), device_nodes.begin() + static_cast<std::ptrdiff_t>(device), node));
  switch (mode) {
    case NumaBinding::node:
      return own;
    case NumaBinding::socket:
      return socket_cpus(cpus, own);
    case NumaBinding::exclusive:
      return exclusive_cpus(cpus, own, node, place, gpus);
    case NumaBinding::core_complex:
      return cache_cpus(cpus, own, place);
  }
  return own;
}

}  // namespace torchup
