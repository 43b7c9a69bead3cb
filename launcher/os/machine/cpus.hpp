#pragma once

#include <vector>

#include "launcher/core/machine/machine.hpp"
#include "rendezvous/base/result.hpp"

namespace torchup {

/// Reads affinity mask and cgroup quota: enough to count. Two system calls and a few small files, well under 1 ms.
[[nodiscard]] Result<Cpus> read_cpus();

/// Adds packages, cores, caches and NUMA nodes, as NUMA binding and `--omp auto` need them: several files for each CPU.
/// `sysfs` is "/sys" but in tests. What a file that is missing would have said is taken as "one of everything".
void read_topology(Cpus& cpus, const std::string& sysfs = "/sys");

/// The NUMA node of a PCI device ("0000:dc:00.0"); 0 where the kernel says -1 or nothing.
[[nodiscard]] int pci_numa_node(const std::string& pci, const std::string& sysfs = "/sys");

/// A CpuSet as sched_setaffinity takes it, made before the fork.
class AffinityMask {
 public:
  explicit AffinityMask(const CpuSet& cpus);
  /// Binds the calling thread. Async-signal-safe: for the child, before exec. Returns 0 or errno.
  [[nodiscard]] int apply() const noexcept;

 private:
  std::vector<unsigned long> words_;
};

}  // namespace torchup
