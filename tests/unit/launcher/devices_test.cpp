#include "launcher/core/machine/devices.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

namespace {

Gpu whole(const std::string& uuid) {
  Gpu gpu;
  gpu.uuid = uuid;
  gpu.name = "H";
  return gpu;
}

Gpu split(const std::string& uuid, std::vector<std::string> instances) {
  Gpu gpu = whole(uuid);
  gpu.mig_enabled = true;
  gpu.mig_instances = std::move(instances);
  return gpu;
}

std::string ids(const std::vector<Device>& devices) { return to_variable(devices); }

std::vector<std::size_t> gpus_of(const std::vector<Device>& devices) {
  std::vector<std::size_t> indices;
  for (const Device& device : devices) indices.push_back(device.gpu);
  return indices;
}

const Gpus four{{whole("GPU-aa01"), whole("GPU-aa02"), whole("GPU-bb03"), whole("GPU-cc04")}, ""};

}  // namespace

TEST_CASE("CUDA_VISIBLE_DEVICES with indices", "[unit][devices]") {
  REQUIRE(ids(visible_devices(four, std::nullopt)) == "0,1,2,3");
  REQUIRE(ids(visible_devices(four, "2,0")) == "2,0");
  REQUIRE(visible_devices(four, "").empty());
  SECTION("ends before the first entry that means nothing") {
    REQUIRE(ids(visible_devices(four, "0,1,-1,2")) == "0,1");
    REQUIRE(ids(visible_devices(four, "0,9,1")) == "0");
    REQUIRE(ids(visible_devices(four, "0,,1")) == "0");
    REQUIRE(visible_devices(four, "none").empty());
    REQUIRE(ids(visible_devices(four, "3,GPU-aa01")) == "3");
  }
  SECTION("an entry twice hides all") { REQUIRE(visible_devices(four, "0,1,0").empty()); }
  SECTION("is as lenient as strtoul") { REQUIRE(ids(visible_devices(four, " 1gpu, +2 ")) == "1,2"); }
}

TEST_CASE("CUDA_VISIBLE_DEVICES with UUIDs", "[unit][devices]") {
  REQUIRE(gpus_of(visible_devices(four, "GPU-bb03,GPU-aa01")) == std::vector<std::size_t>{2, 0});
  REQUIRE(gpus_of(visible_devices(four, "GPU-b,GPU-c")) == std::vector<std::size_t>{2, 3});
  REQUIRE(visible_devices(four, "GPU-a").empty());  // two begin so
  REQUIRE(gpus_of(visible_devices(four, "GPU-b,GPU-x,GPU-c")) == std::vector<std::size_t>{2});
  REQUIRE(gpus_of(visible_devices(four, "GPU-b,0")) == std::vector<std::size_t>{2});
  REQUIRE(visible_devices(four, "GPU-b,GPU-bb03").empty());  // the same one twice
}

TEST_CASE("split GPUs", "[unit][devices]") {
  const Gpus gpus{{split("GPU-1", {"MIG-a", "MIG-b"}), split("GPU-2", {}), whole("GPU-3")}, ""};
  SECTION("an index stands for the first instance, and a GPU without instances for nothing") {
    REQUIRE(ids(visible_devices(gpus, std::nullopt)) == "0,2");
    REQUIRE(ids(visible_devices(gpus, "2,1")) == "2");
  }
  SECTION("instances by name") {
    REQUIRE(ids(visible_devices(gpus, "MIG-b,MIG-a")) == "MIG-b,MIG-a");
    REQUIRE(ids(visible_devices(gpus, "MIG-a,GPU-3")) == "MIG-a");
    REQUIRE(visible_devices(gpus, "GPU-1").empty());
  }
  SECTION("one process sees one instance only") {
    REQUIRE(usable_in_one_process(gpus, visible_devices(gpus, "MIG-b,MIG-a")) == 1);
    REQUIRE(usable_in_one_process(gpus, visible_devices(gpus, "2")) == 1);
    REQUIRE(usable_in_one_process(four, visible_devices(four, "0,1,2")) == 3);
    REQUIRE(usable_in_one_process(gpus, {}) == 0);
  }
}

TEST_CASE("option --gpus chooses among the visible devices", "[unit][devices]") {
  const auto all = visible_devices(four, std::nullopt);
  REQUIRE(ids(choose_devices("0,3", four, all).value()) == "0,3");
  REQUIRE(ids(choose_devices(" 3 , 0 ", four, all).value()) == "3,0");
  REQUIRE(ids(choose_devices("GPU-b", four, all).value()) == "GPU-bb03");
  SECTION("indices count within a scheduler's choice") {
    const auto given = visible_devices(four, "3,1");
    REQUIRE(ids(choose_devices("0", four, given).value()) == "3");
    REQUIRE(ids(choose_devices("1,0", four, given).value()) == "1,3");
    REQUIRE_FALSE(choose_devices("2", four, given).has_value());
    REQUIRE_FALSE(choose_devices("GPU-b", four, given).has_value());  // there, but not ours
  }
  SECTION("indices and UUIDs together become UUIDs, since CUDA does not mix them") {
    REQUIRE(ids(choose_devices("0,GPU-b", four, all).value()) == "GPU-aa01,GPU-bb03");
  }
  SECTION("what is not there, twice or empty is refused, and the error says what is there") {
    for (const char* list : {"4", "", "0,", "0,0", "-1", "x", "GPU-a", "1.0"}) {
      INFO(list);
      REQUIRE_FALSE(choose_devices(list, four, all).has_value());
    }
    REQUIRE(choose_devices("7", four, all).error().context.find("3 (H, GPU-cc04)") != std::string::npos);
    const Gpus none{{}, "no NVIDIA driver is loaded"};
    REQUIRE(choose_devices("0", none, {}).error().context.find("no NVIDIA driver is loaded") != std::string::npos);
  }
}

TEST_CASE("option --virtual-local-rank gives each worker its own entry", "[unit][devices]") {
  using Variables = std::vector<std::pair<std::string, std::string>>;
  REQUIRE(virtual_rank_variables(LocalRank{1}, std::nullopt, std::nullopt).value() ==
          Variables{{"CUDA_VISIBLE_DEVICES", "1"}});
  REQUIRE(virtual_rank_variables(LocalRank{1}, "4, GPU-x ,6", std::nullopt).value() ==
          Variables{{"CUDA_VISIBLE_DEVICES", "GPU-x"}});
  REQUIRE(virtual_rank_variables(LocalRank{0}, "8,9", "3,4").value() ==
          Variables{{"CUDA_VISIBLE_DEVICES", "3"}, {"HIP_VISIBLE_DEVICES", "3"}});
  REQUIRE(virtual_rank_variables(LocalRank{1}, "8,9", "").value() == Variables{{"CUDA_VISIBLE_DEVICES", "9"}});
  REQUIRE(virtual_rank_variables(LocalRank{0}, "", std::nullopt).value() == Variables{{"CUDA_VISIBLE_DEVICES", ""}});
  REQUIRE(virtual_rank_variables(LocalRank{2}, "0,1", std::nullopt).error().context ==
          "local_rank 2 exceeds available GPUs in CUDA_VISIBLE_DEVICES=0,1");
  REQUIRE(virtual_rank_variables(LocalRank{1}, "", std::nullopt).error().context ==
          "local_rank 1 exceeds available GPUs in CUDA_VISIBLE_DEVICES=");
  REQUIRE(virtual_rank_variables(LocalRank{2}, "0,1,2", "7").error().context ==
          "local_rank 2 exceeds available GPUs in HIP_VISIBLE_DEVICES=7");
}
