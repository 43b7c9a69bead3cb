#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/cpu_set.hpp"

namespace torchup {

/// One GPU as the driver shows it.
struct Gpu {
  std::string uuid;  ///< "GPU-…"
  std::string name;  ///< "NVIDIA H200"
  std::string pci;   ///< its folder in /sys/bus/pci/devices, "0000:dc:00.0"
  int numa_node = 0;
  bool mig_enabled = false;                ///< split: the whole GPU cannot be used, its instances can
  std::vector<std::string> mig_instances;  ///< "MIG-…", in the driver's order; may be empty although mig_enabled

  friend bool operator==(const Gpu&, const Gpu&) = default;
};

/// A process that has memory of a GPU.
struct GpuHolder {
  std::int64_t pid = 0;
  std::string name = {};
  std::int64_t bytes = 0;
  friend bool operator==(const GpuHolder&, const GpuHolder&) = default;
};
/// How one GPU is, as NVML shows it. What it does not tell is nothing.
struct GpuFacts {
  int index = 0;  ///< in the driver's order, of all GPUs
  std::string name = {};
  bool lost = false;
  std::optional<int> xid = {};  ///< of its last error in the kernel's log, where it is lost
  bool remap_pending = false;
  bool retirement_pending = false;
  std::int64_t uncorrected_ecc = 0;  ///< since the driver was loaded
  bool thermal_slowdown = false;
  bool hardware_slowdown = false;
  std::optional<std::int64_t> memory_bytes = {};
  std::optional<std::int64_t> free_bytes = {};
  std::vector<GpuHolder> holders = {};
  friend bool operator==(const GpuFacts&, const GpuFacts&) = default;
};

/// The Gpus::problem of a machine that is none for GPUs.
inline constexpr std::string_view no_driver = "no NVIDIA driver is loaded";

/// What the driver said. In the order of the driver (PCI bus), which is CUDA's order too when all GPUs are of one kind
/// or CUDA_DEVICE_ORDER=PCI_BUS_ID is set.
struct Gpus {
  std::vector<Gpu> list;
  std::string problem;               ///< why the list is empty: no_driver, "no answer within 10 s", …; else empty
  std::vector<GpuFacts> facts = {};  ///< of all of them, also where one is lost and the list is empty for it
  std::string driver = {};           ///< its version

  /// One is lost, and the list is empty for it.
  [[nodiscard]] bool any_lost() const { return list.empty() && std::ranges::any_of(facts, &GpuFacts::lost); }

  friend bool operator==(const Gpus&, const Gpus&) = default;
};

/// What of one CPU the binding rules look at.
struct Cpu {
  int package = 0;     ///< socket
  CpuSet siblings;     ///< CPUs of the same physical core, itself included
  CpuSet cache_group;  ///< CPUs that share its highest-level data or unified cache, itself included

  friend bool operator==(const Cpu&, const Cpu&) = default;
};

/// The CPUs that this process may use, and how they lie.
struct Cpus {
  CpuSet allowed;               ///< affinity mask; never empty on a running system
  std::optional<double> quota;  ///< CPU time per time, of the tightest cgroup above us; nothing: unlimited
  std::map<int, Cpu> cpus;      ///< at least the allowed ones
  std::map<int, CpuSet> nodes;  ///< NUMA node -> its CPUs, the allowed and the others; a node of memory only has none

  friend bool operator==(const Cpus&, const Cpus&) = default;
};

}  // namespace torchup
