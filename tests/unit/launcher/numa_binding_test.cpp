#include "launcher/core/machine/numa_binding.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

namespace {

/// Two packages, each with two NUMA nodes of 6 CPUs: 3 cores with two threads (0 and 3, 1 and 4, 2 and 5), of which
/// the first two share one cache and the third has another. Node 4 is memory only.
Cpus machine() {
  Cpus cpus;
  for (int node = 0; node < 4; ++node) {
    const int base = node * 6;
    for (int index = 0; index < 6; ++index) {
      const int core = base + index % 3;
      const bool shared = index % 3 < 2;
      cpus.cpus[base + index] = Cpu{
          node / 2, {core, core + 3}, shared ? CpuSet{base, base + 1, base + 3, base + 4} : CpuSet{base + 2, base + 5}};
      cpus.nodes[node].insert(base + index);
      cpus.allowed.insert(base + index);
    }
  }
  cpus.nodes[4] = {};
  return cpus;
}

std::string bound(NumaBinding mode, int local_rank, const std::vector<int>& device_nodes,
                  const Cpus& cpus = machine()) {
  const auto result = numa_cpus(mode, LocalRank{local_rank}, cpus, device_nodes);
  return result ? to_cpu_list(result.value()) : "error: " + result.error().context;
}

}  // namespace

TEST_CASE("node binds to the CPUs of the GPU's node", "[unit][numa_binding]") {
  REQUIRE(bound(NumaBinding::node, 0, {1, 0}) == "6-11");
  REQUIRE(bound(NumaBinding::node, 1, {1, 0}) == "0-5");
  Cpus cpus = machine();
  cpus.allowed = {0, 5, 7, 9};
  REQUIRE(bound(NumaBinding::node, 0, {1, 0}, cpus) == "7,9");
}

TEST_CASE("socket binds to all nodes of the package", "[unit][numa_binding]") {
  REQUIRE(bound(NumaBinding::socket, 0, {1}) == "0-11");
  REQUIRE(bound(NumaBinding::socket, 0, {3}) == "12-23");
  Cpus cpus = machine();
  cpus.allowed = {0, 7, 12};
  REQUIRE(bound(NumaBinding::socket, 0, {1}, cpus) == "0,7");
}

TEST_CASE("exclusive shares the node's cores without overlap", "[unit][numa_binding]") {
  REQUIRE(bound(NumaBinding::exclusive, 0, {0}) == "0-5");
  // Three cores for two GPUs: the first gets two.
  REQUIRE(bound(NumaBinding::exclusive, 0, {0, 1, 0}) == "0-1,3-4");
  REQUIRE(bound(NumaBinding::exclusive, 2, {0, 1, 0}) == "2,5");
  REQUIRE(bound(NumaBinding::exclusive, 1, {0, 1, 0}) == "6-11");
  REQUIRE(bound(NumaBinding::exclusive, 3, {0, 0, 0, 0}) ==
          "error: There are only 3 physical cores on numa_node_index=0, but there are 4 devices associated with this "
          "NUMA node.");
  // A core of which only the second thread is allowed still counts as one.
  Cpus cpus = machine();
  cpus.allowed = {3, 1};
  REQUIRE(bound(NumaBinding::exclusive, 0, {0, 0}, cpus) == "3");
  REQUIRE(bound(NumaBinding::exclusive, 1, {0, 0}, cpus) == "1");
}

TEST_CASE("core-complex gives each GPU a cache, largest first, round and round", "[unit][numa_binding]") {
  REQUIRE(bound(NumaBinding::core_complex, 0, {0, 0, 0}) == "0-1,3-4");
  REQUIRE(bound(NumaBinding::core_complex, 1, {0, 0, 0}) == "2,5");
  REQUIRE(bound(NumaBinding::core_complex, 2, {0, 0, 0}) == "0-1,3-4");
  Cpus cpus = machine();
  cpus.allowed = {0, 2, 5};  // the smaller cache has more CPUs that we may use
  REQUIRE(bound(NumaBinding::core_complex, 0, {0}, cpus) == "2,5");
}

TEST_CASE("NUMA binding without GPU, node or CPU is refused", "[unit][numa_binding]") {
  REQUIRE(bound(NumaBinding::node, 0, {}) == "error: No accelerator available for NUMA binding");
  REQUIRE(bound(NumaBinding::node, 2, {0, 0}).find("local rank 2 has no GPU, only 2 visible") != std::string::npos);
  REQUIRE(bound(NumaBinding::node, 0, {9}) == "error: Could not determine CPUs corresponding to numa_node_index=9.");
  REQUIRE(bound(NumaBinding::node, 0, {4}).find("error: Must bind to a non-empty set of CPU indices") == 0);
}

TEST_CASE("the names of the binding modes", "[unit][numa_binding]") {
  REQUIRE(parse_numa_binding("core-complex").value() == NumaBinding::core_complex);
  REQUIRE(parse_numa_binding("socket").value() == NumaBinding::socket);
  REQUIRE(parse_numa_binding("core_complex").error().context ==
          "invalid choice: 'core_complex' (choose from 'node', 'socket', 'exclusive', 'core-complex')");
}
