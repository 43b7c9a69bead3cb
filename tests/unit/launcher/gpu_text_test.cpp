#include "launcher/core/machine/gpu_text.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

namespace {

Gpus two_gpus() {
  Gpus gpus;
  gpus.list.push_back({"GPU-1", "NVIDIA H200", "0000:dc:00.0", 0, false, {}});
  gpus.list.push_back({"GPU-2", "NVIDIA H200", "0000:DD:00.0", 0, true, {"MIG-1", "MIG-2"}});
  gpus.problem = "one could not be asked";
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
  const std::string longest(gpu_field_bytes_max, 'u');
  REQUIRE(from_gpu_text("gpu\t" + longest + "more\tn\t0\twhole\nend\n")->list[0].uuid == longest);
}
