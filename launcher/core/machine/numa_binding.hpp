#pragma once

#include <string_view>
#include <vector>

#include "launcher/core/machine/machine.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

/// --numa-binding: to which CPUs a worker is bound, seen from the GPU whose index is its local rank.
enum class NumaBinding {
  node,          ///< all CPUs of the GPU's NUMA node
  socket,        ///< all CPUs of all NUMA nodes on the same package
  exclusive,     ///< an equal share of the node's physical cores, no core shared with the node's other GPUs
  core_complex,  ///< the CPUs behind one highest-level cache of the node, another for each GPU while there are any
};

/// Errors: errc::bad_value for anything but `node`, `socket`, `exclusive`, `core-complex`.
[[nodiscard]] Result<NumaBinding> parse_numa_binding(std::string_view text);

/// The CPUs for the worker with `local_rank`; `device_nodes[n]` is the NUMA node of visible GPU n. Always a part of
/// `cpus.allowed`, never empty.
///
/// Errors: errc::bad_value, with torchrun's texts: no GPU; local rank beyond the GPUs; node unknown to the kernel or
/// without an allowed CPU; `exclusive` with fewer cores than GPUs on a node.
/// Source: torchrun, torch/numa/binding.py. It needs the program numactl for the same effect.
[[nodiscard]] Result<CpuSet> numa_cpus(NumaBinding mode, LocalRank local_rank, const Cpus& cpus,
                                       const std::vector<int>& device_nodes);

}  // namespace torchup
