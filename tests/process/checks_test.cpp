// What is looked at on a node, on this machine.
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "launcher/os/diagnosis/health_check.hpp"
#include "launcher/os/diagnosis/pair_probe.hpp"
#include "launcher/os/diagnosis/preflight_facts.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

HealthQuery query_of(const std::string& command, Duration limit = 20s) {
  HealthQuery query;
  query.command = command;
  query.program = TORCHUP_PROGRAM;
  query.limit = limit;
  return query;
}

bool has_children() { return ::waitpid(-1, nullptr, WNOHANG) >= 0; }

}  // namespace

TEST_CASE("quick facts take less than a millisecond", "[process][checks]") {
  const PreflightPlaces places{.workers = 8, .log_folder = "/tmp/no/such", .temporary_folder = temporary_folder()};
  std::vector<Duration> times;
  for (int i = 0; i < 51; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    static_cast<void>(preflight_findings(read_preflight_facts(places, PreflightLevel::quick), PreflightLevel::quick));
    times.push_back(std::chrono::steady_clock::now() - begin);
  }
  const Duration fastest = *std::ranges::min_element(times);  // a busy machine makes single ones slow
  INFO(std::chrono::duration<double, std::micro>{fastest}.count() << " us");
  REQUIRE(fastest < 1ms);
  REQUIRE_FALSE(has_children());
}

TEST_CASE("facts are this machine's", "[process][checks]") {
  const test::TemporaryFolder folder;
  const PreflightPlaces places{
      .workers = 1, .log_folder = (folder.path / "not/yet").string(), .temporary_folder = folder.path.string()};
  const PreflightFacts facts = read_preflight_facts(places, PreflightLevel::full);
  REQUIRE(facts.shm_free_bytes);
  REQUIRE(facts.disks.size() == 2);
  for (const DiskFacts& disk : facts.disks) {
    INFO(disk.path << ": " << disk.problem);
    REQUIRE(disk.free_bytes);
    REQUIRE(disk.fsync);
    REQUIRE(disk.problem.empty());
  }
  REQUIRE(facts.gpu_problem.empty());
  REQUIRE(look_at_disk(DiskUse::temporary, folder.path.string(), false).fsync == std::nullopt);
  REQUIRE_FALSE(look_at_disk(DiskUse::logs, "/proc/self", true).problem.empty());
}

TEST_CASE("only the GPUs of the job are looked at", "[process][checks]") {
  PreflightPlaces places;
  places.gpus_found.facts = {{.index = 0}, {.index = 1, .lost = true}, {.index = 2}};
  places.gpus_found.problem = "NVML does not know GPU 1: GPU is lost";
  REQUIRE(read_preflight_facts(places, PreflightLevel::quick).gpus.size() == 3);
  REQUIRE(read_preflight_facts(places, PreflightLevel::quick).gpu_problem.empty());  // the lost one says it better
  places.gpus = {0, 2};
  REQUIRE(read_preflight_facts(places, PreflightLevel::quick).gpus.size() == 2);
  places.gpus_found = {{}, "no NVIDIA driver is loaded", {}, {}};
  REQUIRE(read_preflight_facts(places, PreflightLevel::quick).gpu_problem.empty());
  places.gpus_found.problem = "the NVIDIA driver gave no answer within 10000 ms";
  REQUIRE(read_preflight_facts(places, PreflightLevel::quick).gpu_problem == places.gpus_found.problem);
}

TEST_CASE("a health check has its limit, and leaves nothing behind", "[process][checks]") {
  const auto begin = std::chrono::steady_clock::now();
  const auto finding = check_health(query_of("echo waiting; setsid sleep 4245 & trap '' TERM; sleep 4245", 300ms));
  REQUIRE(std::chrono::steady_clock::now() - begin < 20s);
  REQUIRE(finding);
  REQUIRE(finding->text == "--health-check did not end within 60 s: waiting");
  REQUIRE_FALSE(has_children());
}

TEST_CASE("a health check that is cancelled is gone, and finds nothing", "[process][checks]") {
  const UniqueFd end{::eventfd(0, EFD_CLOEXEC)};
  HealthQuery query = query_of("trap '' TERM; sleep 4246");
  query.cancelled = end.get();
  std::thread canceller{[&end] {
    std::this_thread::sleep_for(100ms);
    ::eventfd_write(end.get(), 1);
  }};
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE_FALSE(check_health(query));
  REQUIRE(std::chrono::steady_clock::now() - begin < 15s);
  canceller.join();
  REQUIRE_FALSE(has_children());
}

TEST_CASE("the way between two ends is tried", "[process][checks]") {
  auto end = PairEnd::open();
  REQUIRE(end);
  const NodePair pair{GroupRank{0}, GroupRank{1}};
  const PairWay way{"127.0.0.1", (*end)->port(), (*end)->secret()};
  for (int i = 0; i < 2; ++i) {
    const PairResult result = probe_pair(pair, way);
    INFO(result.problem);
    REQUIRE(result.connected);
    REQUIRE(result.bytes_per_s > 1'000'000);
  }
  SECTION("a stranger is sent away") {
    PairWay strangers = way;
    strangers.secret = std::string(32, '0');
    REQUIRE_FALSE(probe_pair(pair, strangers).connected);
    REQUIRE(probe_pair(pair, way).connected);
  }
  SECTION("where nobody listens it says so") {
    end->reset();
    REQUIRE(probe_pair(pair, way).problem == "Connection refused");
  }
  REQUIRE(own_address_towards("127.0.0.1", Port{80}) == "127.0.0.1");
}
