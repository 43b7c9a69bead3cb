#include "launcher/core/diagnosis/preflight.hpp"

#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>

#include "rendezvous/core/text/wording.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

constexpr std::int64_t mib = std::int64_t{1} << 20;
constexpr std::int64_t gib = std::int64_t{1} << 30;

GpuFacts good_gpu(int index = 0) {
  GpuFacts gpu;
  gpu.index = index;
  gpu.name = "NVIDIA H200";
  gpu.memory_bytes = 100 * gib;
  gpu.free_bytes = 99 * gib;
  return gpu;
}

std::vector<Finding> of_gpu(const GpuFacts& gpu) {
  PreflightFacts facts;
  facts.gpus = {gpu};
  return preflight_findings(facts, PreflightLevel::quick);
}

std::vector<Finding> of_disk(const DiskFacts& disk, PreflightLevel level = PreflightLevel::full) {
  PreflightFacts facts;
  facts.disks = {disk};
  return preflight_findings(facts, level);
}

NodePreflight node(const std::string& host, std::vector<Finding> findings = {}) {
  return {.host = host,
          .done = {Check::shm, Check::gpu, Check::versions},
          .findings = std::move(findings),
          .versions = {{"torch", "2.15.0"}}};
}
const Finding lost{Check::gpu, FindingLevel::unfit, "GPU 3 is lost (Xid 79)", "start the machine again"};
const Finding small{Check::shm, FindingLevel::warning, "/dev/shm has 64 MiB free", "make it larger"};

/// One finding of that check, whose line names all this.
void require_one(const std::vector<Finding>& findings, Check check, FindingLevel level,
                 const std::vector<std::string>& words) {
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].check == check);
  CHECK(findings[0].level == level);
  CHECK_FALSE(findings[0].remedy.empty());
  for (const std::string& word : words) {
    CAPTURE(line_of(findings[0]), word);
    CHECK(line_of(findings[0]).find(word) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("what is not known, or not limited, leads to no finding", "[unit][preflight]") {
  for (const PreflightLevel level : {PreflightLevel::off, PreflightLevel::quick, PreflightLevel::full})
    CHECK(preflight_findings({}, level).empty());
}

TEST_CASE("/dev/shm wants 64 MiB for each worker, and a GiB", "[unit][preflight]") {
  PreflightFacts facts;
  facts.workers = 16;
  facts.shm_free_bytes = gib;
  CHECK(preflight_findings(facts, PreflightLevel::quick).empty());
  facts.workers = 17;
  require_one(preflight_findings(facts, PreflightLevel::quick), Check::shm, FindingLevel::warning,
              {"/dev/shm", "1.0 GiB", "17 workers want 64.0 MiB each", "--shm-size"});
  facts.workers = 1;
  facts.shm_free_bytes = gib - 1;
  require_one(preflight_findings(facts, PreflightLevel::quick), Check::shm, FindingLevel::warning, {"1 worker wants"});
  CHECK(preflight_findings(facts, PreflightLevel::off).empty());
}

TEST_CASE("a pod's /dev/shm matters to several workers, and to a GPU", "[unit][preflight]") {
  PreflightFacts facts;
  facts.in_pod = true;
  facts.shm_free_bytes = gib - 1;
  CHECK(preflight_findings(facts, PreflightLevel::full).empty());
  facts.workers = 2;
  require_one(preflight_findings(facts, PreflightLevel::quick), Check::shm, FindingLevel::warning,
              {"2 workers want 1.0 GiB", "emptyDir with medium: Memory"});
  facts.workers = 1;
  facts.gpu_device = true;
  require_one(preflight_findings(facts, PreflightLevel::quick), Check::shm, FindingLevel::warning, {"emptyDir"});
  facts.shm_free_bytes = gib;
  CHECK(preflight_findings(facts, PreflightLevel::quick).empty());
}

TEST_CASE("open files, locked memory and processes have limits", "[unit][preflight]") {
  PreflightFacts facts;
  facts.workers = 8;
  facts.nofile = 4 * 8 + 64;
  facts.pids_left = 64 * 8;
  facts.memlock_bytes = 64 << 10;
  CHECK(preflight_findings(facts, PreflightLevel::quick).empty());
  facts.nofile = 95;
  require_one(preflight_findings(facts, PreflightLevel::quick), Check::nofile, FindingLevel::warning,
              {"95", "8 workers want 96", "ulimit"});
  facts.nofile.reset();
  facts.pids_left = 511;
  require_one(preflight_findings(facts, PreflightLevel::quick), Check::pids, FindingLevel::warning,
              {"511", "8 workers want 512", "pids.max"});
  facts.pids_left.reset();
  facts.infiniband = true;
  require_one(preflight_findings(facts, PreflightLevel::quick), Check::memlock, FindingLevel::warning,
              {"64.0 KiB", "InfiniBand", "memlock"});
}

TEST_CASE("a disk wants a GiB free, and to be written in 100 ms", "[unit][preflight]") {
  DiskFacts disk{.use = DiskUse::logs, .path = "/logs", .free_bytes = gib, .fsync = 100ms};
  CHECK(of_disk(disk).empty());
  disk.fsync = 100ms + 1ns;
  require_one(of_disk(disk), Check::disk, FindingLevel::warning, {"log folder /logs", "100 ms", "--log-dir"});
  CHECK(of_disk(disk, PreflightLevel::quick).empty());
  disk = {.use = DiskUse::temporary, .path = "/tmp", .free_bytes = gib - 1};
  require_one(of_disk(disk, PreflightLevel::quick), Check::disk, FindingLevel::warning,
              {"temporary folder /tmp", "1023.9 MiB", "1.0 GiB", "TMPDIR"});
  disk.problem = "Permission denied\x1b[2J";
  require_one(of_disk(disk), Check::disk, FindingLevel::warning, {"Permission denied\\x1b[2J"});
}

TEST_CASE("a lost GPU makes a node unfit, and nothing else is said of it", "[unit][preflight]") {
  GpuFacts gpu = good_gpu(3);
  CHECK(of_gpu(gpu).empty());
  gpu.lost = true;
  gpu.xid = 79;
  gpu.uncorrected_ecc = 5;
  const auto findings = of_gpu(gpu);
  require_one(findings, Check::gpu, FindingLevel::unfit, {"GPU 3 is lost (Xid 79)"});
  REQUIRE(unfit_line("nodeb", unfit_reason(findings)) == "nodeb: unfit: GPU 3 is lost (Xid 79)");
  gpu.xid.reset();
  REQUIRE(unfit_reason(of_gpu(gpu)) == "GPU 3 is lost");
}

TEST_CASE("a GPU that is ill or taken is a warning", "[unit][preflight]") {
  GpuFacts gpu = good_gpu(1);
  gpu.remap_pending = true;
  require_one(of_gpu(gpu), Check::gpu, FindingLevel::warning, {"GPU 1", "remapped", "--gpus"});
  gpu = good_gpu(1);
  gpu.retirement_pending = true;
  require_one(of_gpu(gpu), Check::gpu, FindingLevel::warning, {"GPU 1", "retired"});
  gpu = good_gpu(1);
  gpu.uncorrected_ecc = 2;
  require_one(of_gpu(gpu), Check::gpu, FindingLevel::warning, {"2 memory errors", "ECC"});
  gpu = good_gpu(1);
  gpu.thermal_slowdown = true;
  require_one(of_gpu(gpu), Check::gpu, FindingLevel::warning, {"heat", "cooling"});
  gpu = good_gpu(1);
  gpu.hardware_slowdown = true;
  require_one(of_gpu(gpu), Check::gpu, FindingLevel::warning, {"hardware", "power"});
  gpu = good_gpu(1);
  gpu.free_bytes = 90 * gib;
  CHECK(of_gpu(gpu).empty());
  gpu.free_bytes = 90 * gib - 1;
  require_one(of_gpu(gpu), Check::gpu, FindingLevel::warning, {"89.9 GiB of 100.0 GiB", "not seen from here"});
  for (int i = 1; i <= 5; ++i) gpu.holders.push_back({100 + i, "python", i * gib});
  require_one(of_gpu(gpu), Check::gpu, FindingLevel::warning,
              {"pid 105 (python) with 5.0 GiB, pid 104", "pid 102 (python) with 2.0 GiB and 1 more"});
  gpu.memory_bytes = 0;
  gpu.free_bytes = 0;
  CHECK(of_gpu(gpu).size() == 1);
}

TEST_CASE("a driver without an answer is a warning", "[unit][preflight]") {
  PreflightFacts facts;
  facts.gpu_problem = "no answer within 10 s";
  require_one(preflight_findings(facts, PreflightLevel::quick), Check::gpu, FindingLevel::warning,
              {"no answer within 10 s", "nvidia-smi"});
}

TEST_CASE("clocks may differ by a second", "[unit][preflight]") {
  for (const Duration ahead : {Duration{1s}, Duration{-1s}, Duration{0}}) CHECK_FALSE(clock_finding(ahead));
  require_one({clock_finding(1500ms).value()}, Check::clock, FindingLevel::warning, {"1.5 s ahead of", "NTP"});
  require_one({clock_finding(-90s).value()}, Check::clock, FindingLevel::warning, {"90 s behind"});
}

TEST_CASE("of more findings than 64 those stay that make a node unfit", "[unit][preflight]") {
  PreflightFacts facts;
  for (int i = 0; i < 70; ++i) {
    facts.gpus.push_back(good_gpu(i));
    facts.gpus.back().thermal_slowdown = true;
  }
  facts.gpus.resize(findings_max);
  CHECK(preflight_findings(facts, PreflightLevel::quick).size() == findings_max);
  facts.gpus.push_back(good_gpu(99));
  facts.gpus.back().lost = true;
  const auto findings = preflight_findings(facts, PreflightLevel::quick);
  CHECK(findings.size() == findings_max);
  CHECK(unfit_reason(findings) == "GPU 99 is lost");
}

TEST_CASE("a health check's end and its last line are the reason", "[unit][preflight]") {
  CHECK_FALSE(health_finding(0, "all well"));
  CHECK(health_finding(3, "no mount of /data")->text == "--health-check ended with 3: no mount of /data");
  CHECK(health_finding(3, "")->text == "--health-check ended with 3");
  CHECK(health_finding(124, "")->text == "--health-check ended with 124");
  CHECK(health_finding({}, "")->text == "--health-check did not end within 60 s");
  CHECK(health_finding({}, "", 300ms)->text == "--health-check did not end within 0.3 s");
  CHECK(health_finding(1, "\x1b[31mred")->text == "--health-check ended with 1: \\x1b[31mred");
  CHECK(health_finding(1, "")->level == FindingLevel::unfit);
}

TEST_CASE("pairs that condemn a node are its reason, and reasons stand in one line", "[unit][preflight]") {
  const Finding pairs = pair_finding(Check::pairs, "nodeb has 2 of 2 pairs bad");
  CHECK(pairs.level == FindingLevel::unfit);
  CHECK(unfit_reason(std::vector{small, lost, pairs}) == "GPU 3 is lost (Xid 79); nodeb has 2 of 2 pairs bad");
  CHECK(unfit_reason(std::vector{small}).empty());
}

TEST_CASE("preflight alone ends with 0, 65 or 66", "[unit][preflight]") {
  const std::vector nodes{node("nodea"), node("nodeb", {lost}), node("nodec", {small})};
  CHECK(preflight_code(nodes, 2) == 0);
  CHECK(preflight_code(nodes, 3) == 65);
  CHECK(preflight_code(nodes, 4) == 66);
  CHECK(preflight_code({}, 1) == 66);
}

TEST_CASE("the table has a row a node and a column a check", "[unit][preflight]") {
  std::vector nodes{node("nodea", {small}), node("nodeb", {lost})};
  nodes[0].done.push_back(Check::clock);
  REQUIRE(preflight_table(nodes) ==
          "node   shm      gpu      clock    versions\n"
          "nodea  warning  ok       ok       ok\n"
          "nodeb  ok       unfit    -        ok\n"
          "nodea: warning: /dev/shm has 64 MiB free: make it larger\n"
          "nodeb: unfit: GPU 3 is lost (Xid 79): start the machine again\n");
  nodes[1].versions = {{"torch", "2.9.1"}};
  const std::string table = preflight_table(nodes);
  CHECK(table.find("versions differ: torch: 2.15.0 on nodea; 2.9.1 on nodeb\n") != std::string::npos);
  CHECK(table.find("nodeb  ok       unfit    -        warning\n") != std::string::npos);
  CHECK(table.find("nodea  warning  ok       ok       warning\n") != std::string::npos);
  CHECK(preflight_table({}) == "node\n");
}

TEST_CASE("what was not found is not called good", "[unit][preflight]") {
  std::vector nodes{node("nodea"), node("nodeb")};
  for (NodePreflight& each : nodes) each.done = {Check::shm};
  nodes[0].versions.clear();
  nodes[1].versions.clear();
  REQUIRE(preflight_table(nodes) ==
          "node   shm\n"
          "nodea  ok\n"
          "nodeb  ok\n");
  nodes[0].versions = {{"torch", "2.15.0"}};
  nodes[0].done.push_back(Check::versions);
  REQUIRE(preflight_table(nodes) ==
          "node   shm      versions\n"
          "nodea  ok       warning\n"
          "nodeb  ok       warning\n"
          "versions differ: torch: (none) on nodeb; 2.15.0 on nodea\n");
  const auto whole = nlohmann::json::parse(preflight_json(nodes, 2));
  for (const int at : {0, 1}) {
    CHECK(whole["nodes"][static_cast<std::size_t>(at)]["checks"][1] ==
          nlohmann::json{{"check", "versions"}, {"level", "warning"}, {"text", ""}, {"remedy", ""}});
  }
}

TEST_CASE("what could not be looked at makes nobody unfit, and says why", "[unit][preflight]") {
  const Finding skipped = nccl_skipped("all_reduce: NCCL is \x1b[31mnot there");
  CHECK(skipped.level == FindingLevel::skipped);
  CHECK_FALSE(is_of_ways(skipped));
  CHECK(is_of_ways(pair_finding(Check::nccl, "x")));
  CHECK(unfit_reason(std::vector{skipped}).empty());
  CHECK(preflight_code(std::vector{node("nodea", {skipped})}, 1) == 0);
  CHECK(preflight_table(std::vector{node("nodea", {skipped})}) ==
        "node   shm      gpu      versions  nccl\n"
        "nodea  ok       ok       ok        skipped\n"
        "nodea: skipped: pairs over NCCL are not tried: all_reduce: NCCL is \\x1b[31mnot there\n");
}

TEST_CASE("amounts of bytes are cut after the tenth", "[unit][preflight]") {
  CHECK(bytes_text(-1).empty());
  CHECK(bytes_text(0) == "0 B");
  CHECK(bytes_text(1023) == "1023 B");
  CHECK(bytes_text(1024) == "1.0 KiB");
  CHECK(bytes_text(mib - 1) == "1023.9 KiB");
  CHECK(bytes_text(4 * mib) == "4.0 MiB");
  CHECK(bytes_text(gib + gib / 10) == "1.0 GiB");
  CHECK(bytes_text(gib + gib / 10 + 1) == "1.1 GiB");
  CHECK(bytes_text(std::numeric_limits<std::int64_t>::max()) == "8388607.9 TiB");
}

TEST_CASE("the table as JSON is one line", "[unit][preflight]") {
  std::vector nodes{node("nodea"), node("nodeb", {lost, small})};
  nodes[1].host = "node\xff";
  const std::string text = preflight_json(nodes, 2);
  REQUIRE(text.find('\n') == text.size() - 1);
  const auto whole = nlohmann::json::parse(text);
  CHECK(whole["schema"] == 1);
  CHECK(whole["exit_code"] == 65);
  CHECK(whole["nodes"].size() == 2);
  CHECK(whole["nodes"][0]["fit"] == true);
  CHECK(whole["nodes"][0]["versions"]["torch"] == "2.15.0");
  CHECK(whole["nodes"][0]["checks"][0] ==
        nlohmann::json{{"check", "shm"}, {"level", "ok"}, {"text", ""}, {"remedy", ""}});
  CHECK(whole["nodes"][1]["fit"] == false);
  CHECK(whole["nodes"][1]["checks"][0]["level"] == "warning");
  CHECK(whole["nodes"][1]["checks"][1]["text"] == "GPU 3 is lost (Xid 79)");
  CHECK(whole["differences"] == "");
}
