// Counts of tasks as Slurm writes them: read within their limits, or refused.
#include "rendezvous/base/slurm_counts.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto counts = read_slurm_counts({reinterpret_cast<const char*>(data), size});
  if (!counts) return 0;
  int nodes = 0;
  for (const SlurmCount& count : *counts) {
    fuzz::require(count.tasks >= 1 && count.tasks <= slurm_count_tasks_max && count.nodes >= 1);
    fuzz::require(tasks_of_node(*counts, nodes) == count.tasks);
    nodes += count.nodes;
    fuzz::require(tasks_of_node(*counts, nodes - 1) == count.tasks);
  }
  fuzz::require(nodes >= 1 && nodes <= slurm_count_nodes_max);
  fuzz::require(!tasks_of_node(*counts, nodes));
  return 0;
}
