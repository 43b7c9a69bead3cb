#include "launcher/core/plan/worker_count.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

namespace {

Cpus eight_cpus() {  // four cores with two threads each: 0 and 4, 1 and 5, …
  Cpus cpus;
  for (int index = 0; index < 8; ++index) {
    cpus.allowed.insert(index);
    cpus.cpus[index] = Cpu{0, {index % 4, index % 4 + 4}, {0, 1, 2, 3, 4, 5, 6, 7}};
  }
  return cpus;
}

Gpus two_gpus() {
  Gpu gpu;
  gpu.uuid = "GPU-1";
  Gpu other;
  other.uuid = "GPU-2";
  return {{gpu, other}, ""};
}

int count(const char* text, const Cpus& cpus, const Gpus& gpus = {}, bool virtual_local_rank = false) {
  return worker_count(parse_worker_count(text).value(), cpus, gpus, visible_devices(gpus, std::nullopt),
                      virtual_local_rank)
      .value();
}

}  // namespace

TEST_CASE("option --nproc-per-node takes the numbers that Python takes", "[unit][worker_count]") {
  REQUIRE(count("3", {}) == 3);
  REQUIRE(count(" +1_0\n", {}) == 10);
  REQUIRE(count("007", {}) == 7);
  for (const char* text : {"2.5", "two", "", " ", "_1", "1_", "1__0", "1 0", "0x2", "+-1", "GPU", "auto "}) {
    INFO(text);
    REQUIRE(parse_worker_count(text).error().context == std::string{"Unsupported nproc_per_node value: "} + text);
  }
  REQUIRE(count("16384", {}) == 16384);
  for (const char* text : {"0", "-1", "16385", "-99999999999999"}) {
    INFO(text);
    REQUIRE_FALSE(parse_worker_count(text).has_value());
  }
  REQUIRE(parse_worker_count("xpu").error().context == "Xpu is not available.");
}

TEST_CASE("only words that mean GPUs ask for them", "[unit][worker_count]") {
  REQUIRE(parse_worker_count("auto")->needs_gpus());
  REQUIRE(parse_worker_count("gpu")->needs_gpus());
  REQUIRE_FALSE(parse_worker_count("cpu")->needs_gpus());
  REQUIRE_FALSE(parse_worker_count("2")->needs_gpus());
}

TEST_CASE("cpu counts the affinity mask and the quota", "[unit][worker_count]") {
  Cpus cpus = eight_cpus();
  REQUIRE(count("cpu", cpus) == 8);
  cpus.quota = 2.5;
  REQUIRE(count("cpu", cpus) == 3);
  cpus.quota = 0.1;
  REQUIRE(count("cpu", cpus) == 1);
  cpus.quota = 64.0;
  REQUIRE(count("cpu", cpus) == 8);
  cpus.allowed = {5};
  REQUIRE(count("cpu", cpus) == 1);
}

TEST_CASE("gpu and auto count the visible GPUs", "[unit][worker_count]") {
  REQUIRE(count("gpu", eight_cpus(), two_gpus()) == 2);
  REQUIRE(count("auto", eight_cpus(), two_gpus()) == 2);
  REQUIRE(count("auto", eight_cpus()) == 8);
  Gpus split = two_gpus();
  split.list[0].mig_enabled = true;
  split.list[0].mig_instances = {"MIG-1", "MIG-2"};
  REQUIRE(count("gpu", eight_cpus(), split) == 1);
  REQUIRE(count("gpu", eight_cpus(), split, true) == 2);
}

TEST_CASE("gpu without one says why", "[unit][worker_count]") {
  const WorkerCountRule rule{WorkerCountRule::Kind::gpu, 1};
  REQUIRE(worker_count(rule, eight_cpus(), {{}, "no NVIDIA driver is loaded"}, {}, false).error().context ==
          "Cuda is not available. (no NVIDIA driver is loaded)");
  REQUIRE(worker_count(rule, eight_cpus(), two_gpus(), {}, false).error().context ==
          "Cuda is not available. (CUDA_VISIBLE_DEVICES hides all of the 2)");
}

TEST_CASE("OMP_NUM_THREADS is 1 for several workers unless somebody chose", "[unit][worker_count]") {
  const OmpRule contract;
  REQUIRE(omp_num_threads(contract, false, 2, 8) == OmpChoice{"1", true});
  REQUIRE(omp_num_threads(contract, false, 1, 8) == OmpChoice{});
  REQUIRE(omp_num_threads(contract, true, 2, 8) == OmpChoice{});
}

TEST_CASE("option --omp auto shares the physical cores", "[unit][worker_count]") {
  Cpus cpus = eight_cpus();
  const OmpRule rule = parse_omp("auto").value();
  REQUIRE(usable_cores(cpus, cpus.allowed) == 4);
  REQUIRE(omp_num_threads(rule, true, 3, usable_cores(cpus, cpus.allowed)) == OmpChoice{"1", false});
  REQUIRE(omp_num_threads(rule, false, 1, usable_cores(cpus, cpus.allowed)) == OmpChoice{"4", false});
  REQUIRE(omp_num_threads(rule, false, 9, 4) == OmpChoice{"1", false});
  REQUIRE(usable_cores(cpus, {0, 4, 1}) == 2);
  cpus.quota = 3.9;
  REQUIRE(usable_cores(cpus, cpus.allowed) == 3);
  cpus.quota = 0.5;
  REQUIRE(usable_cores(cpus, cpus.allowed) == 1);
  REQUIRE(omp_num_threads(parse_omp("6").value(), true, 2, 4) == OmpChoice{"6", false});
  for (const char* text : {"0", "-2", "", "many", "65537"}) {
    INFO(text);
    REQUIRE_FALSE(parse_omp(text).has_value());
  }
}

TEST_CASE("more workers than GPUs is told", "[unit][worker_count]") {
  REQUIRE_FALSE(gpu_shortage(2, 2, true, false));
  REQUIRE_FALSE(gpu_shortage(4, 0, false, false));
  REQUIRE_FALSE(gpu_shortage(4, 2, true, true));
  REQUIRE(gpu_shortage(4, 2, true, false)->refuse);
  REQUIRE_FALSE(gpu_shortage(4, 2, false, false)->refuse);
  REQUIRE(gpu_shortage(4, 1, false, false)->text.find("4 workers, but 1 visible GPU;") == 0);
}
