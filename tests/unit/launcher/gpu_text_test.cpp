#include "launcher/core/machine/gpu_text.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

namespace {

Gpus two_gpus() {
  Gpus gpus;
  gpus.list.push_back({"GPU-1", "NVIDIA H200", "0000:dc:00.0", 0, false, {}});
  gpus.list.push_back({"GPU-2", "NVIDIA H200", "0000:DD:00.0", 0, true, {"MIG-1", "MIG-2"}});
  gpus.problem = "one could not be asked";
  gpus.facts.push_back({.index = 0,
                        .name = "NVIDIA H200",
                        .remap_pending = true,
                        .uncorrected_ecc = 3,
                        .thermal_slowdown = true,
                        .memory_bytes = std::int64_t{141} << 30,
                        .free_bytes = 0,
                        .holders = {{4242, "python3", std::int64_t{60} << 30}, {1, "", 0}}});
  gpus.facts.push_back({.index = 1, .lost = true, .xid = 79, .retirement_pending = true, .hardware_slowdown = true});
  gpus.driver = "570.86.15";
  return gpus;
}

std::string repeated(const std::string& line, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += line;
  return text;
}

}  // namespace

TEST_CASE("GPUs come back from their text", "[unit][gpu_text]") {
  REQUIRE(from_gpu_text(to_gpu_text(two_gpus())) == two_gpus());
  REQUIRE(from_gpu_text(to_gpu_text({})) == Gpus{});
  const std::string whole = to_gpu_text(two_gpus());
  for (std::size_t size = 0; size < whole.size(); ++size) REQUIRE_FALSE(from_gpu_text(whole.substr(0, size)));
}

TEST_CASE("what a driver puts into a name does no harm", "[unit][gpu_text]") {
  Gpus odd = two_gpus();
  odd.list[0].name = "a\tb\nend\n\x1b[2J";
  odd.problem = "tab\there\nthere";
  const auto read = from_gpu_text(to_gpu_text(odd));
  REQUIRE(read->list.size() == 2);
  REQUIRE(read->list[0].name == "a b end  [2J");
  REQUIRE(read->problem == "tab here there");
  for (const char* pci : {"../../etc", "0000:dc:00.0/..", "a b", "0000..1"}) {
    REQUIRE(from_gpu_text(std::string{"gpu\tu\tn\t"} + pci + "\twhole\nend\n")->list[0].pci.empty());
  }
  REQUIRE(from_gpu_text("\nmig\tno GPU before\nlater\tkind\ngpu\ttoo few\nend\n") == Gpus{});
}

TEST_CASE("an answer about GPUs has its limits", "[unit][gpu_text]") {
  const std::string gpu = "gpu\tu\tn\t0\twhole\n", mig = "mig\tm\n";
  REQUIRE(from_gpu_text(repeated(gpu, gpus_max) + "end\n")->list.size() == gpus_max);
  REQUIRE_FALSE(from_gpu_text(repeated(gpu, gpus_max + 1) + "end\n"));
  REQUIRE(from_gpu_text(gpu + repeated(mig, gpus_max) + "end\n")->list[0].mig_instances.size() == gpus_max);
  REQUIRE_FALSE(from_gpu_text(gpu + repeated(mig, gpus_max + 1) + "end\n"));
  REQUIRE(from_gpu_text(std::string(gpu_text_bytes_max - 5, ' ') + "\nend\n"));
  REQUIRE_FALSE(from_gpu_text(std::string(gpu_text_bytes_max - 4, ' ') + "\nend\n"));
  const std::string facts = "facts\t0\tn\t00000\t-\t0\t-\t-\n", holder = "holder\t1\t2\tn\n";
  REQUIRE(from_gpu_text(repeated(facts, gpus_max) + "end\n")->facts.size() == gpus_max);
  REQUIRE_FALSE(from_gpu_text(repeated(facts, gpus_max + 1) + "end\n"));
  REQUIRE(from_gpu_text(facts + repeated(holder, gpu_holders_max) + "end\n")->facts[0].holders.size() ==
          gpu_holders_max);
  REQUIRE_FALSE(from_gpu_text(facts + repeated(holder, gpu_holders_max + 1) + "end\n"));
  const std::string longest(gpu_field_bytes_max, 'u');
  REQUIRE(from_gpu_text("gpu\t" + longest + "more\tn\t0\twhole\nend\n")->list[0].uuid == longest);
}

TEST_CASE("facts of a GPU that are none are passed over", "[unit][gpu_text]") {
  for (const char* line :
       {"facts\t-1\tn\t00000\t-\t0\t-\t-\n", "facts\t0\tn\t0000\t-\t0\t-\t-\n", "facts\t0\tn\t00000\t-\tx\t-\t-\n",
        "holder\t1\t2\tnobody's\n", "facts\t99999999999\tn\t00000\t-\t0\t-\t-\n"}) {
    REQUIRE(from_gpu_text(std::string{line} + "end\n") == Gpus{});
  }
  const auto read = from_gpu_text("facts\t0\tn\t10000\t1x\t0\t-5\tmany\nholder\t-1\t2\tn\nend\n");
  REQUIRE(read->facts == std::vector{GpuFacts{.index = 0, .name = "n", .lost = true}});
}

TEST_CASE("the Xid of a lost GPU is the last one of none that answers", "[unit][gpu_text]") {
  const std::string log =
      "6,1,1,-;NVRM: Xid (PCI:0000:DC:00): 31, pid=7\n4,2,2,-;NVRM: Xid (PCI:0000:19:00): 79, GPU has fallen off\n"
      "4,3,3,-;NVRM: Xid (PCI:0000:dc:00): 13, pid=8\n4,4,4,-;NVRM: Xid (PCI:";
  Gpu there{};
  there.pci = "0000:dc:00.0";
  REQUIRE(lost_gpu_xid(log, std::vector{there}) == 79);
  REQUIRE(lost_gpu_xid(log, {}) == 13);
  there.pci = "0000:19:00.0";
  REQUIRE(lost_gpu_xid(log, std::vector{there}) == 13);
  REQUIRE_FALSE(lost_gpu_xid("NVRM: Xid (PCI:): 79\nNVRM: Xid (PCI:0000:19:00): GPU", {}));
  REQUIRE_FALSE(lost_gpu_xid("", {}));
}
