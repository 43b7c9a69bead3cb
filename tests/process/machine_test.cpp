#include <dirent.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "launcher/os/io/health_port.hpp"
#include "launcher/os/io/read_text.hpp"
#include "launcher/os/machine/cpus.hpp"
#include "launcher/os/machine/gpus.hpp"
#include "launcher/os/machine/node_facts.hpp"
#include "rendezvous/core/text/names.hpp"
#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

/// Files that look like sysfs; gone at the end.
class FakeSysfs {
 public:
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((folder_.path / path).parent_path());
    std::ofstream{folder_.path / path} << text << '\n';
  }
  [[nodiscard]] std::string root() const { return folder_.path.string(); }

 private:
  test::TemporaryFolder folder_;
};

/// Asks the stand-in for NVML that lies beside this program; what it plays is chosen by a variable.
Gpus ask_fake(const char* scene, Duration limit = 10s) {
  setenv("FAKE_NVML", scene, 1);
  GpuQuery query;
  query.program = TORCHUP_PROGRAM;
  query.library = FAKE_NVML_LIBRARY;
  query.driver_check = false;
  query.limit = limit;
  return read_gpus(query);
}

bool has_children() { return waitpid(-1, nullptr, WNOHANG) >= 0; }

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder)) ++count;
  closedir(folder);
  return count;
}

/// A connection to that port of 127.0.0.`last`; empty where nobody listens.
UniqueFd connected(Port port, unsigned last) {
  UniqueFd probe{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port.value());
  address.sin_addr.s_addr = htonl((INADDR_LOOPBACK & ~0xFFU) | last);
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return UniqueFd{};
  return probe;
}

}  // namespace

TEST_CASE("a file of /proc whose process is gone, or that cannot be read, has no text", "[process][machine]") {
  CHECK(read_text("/proc/self/mem").empty());  // an error of read(2), as that of a process that has ended since
  CHECK(read_text("/proc/0/wchan").empty());
  CHECK(read_text("/proc/self/status").size() > 100);
  CHECK(read_text("/proc/self/status", 100).size() == 100);
}

TEST_CASE("the affinity mask is what the kernel says", "[process][machine]") {
  const Cpus before = read_cpus().value();
  REQUIRE_FALSE(before.allowed.empty());
  const int one = *before.allowed.rbegin();
  REQUIRE(AffinityMask{{one}}.apply() == 0);
  REQUIRE(read_cpus()->allowed == CpuSet{one});
  REQUIRE(AffinityMask{before.allowed}.apply() == 0);
  REQUIRE(read_cpus()->allowed == before.allowed);
  REQUIRE(AffinityMask{{100'000}}.apply() == EINVAL);
}

TEST_CASE("this machine's topology covers the allowed CPUs", "[process][machine]") {
  Cpus cpus = read_cpus().value();
  read_topology(cpus);
  CpuSet in_nodes;
  for (const auto& [node, members] : cpus.nodes) in_nodes.insert(members.begin(), members.end());
  for (const int cpu : cpus.allowed) {
    REQUIRE(in_nodes.count(cpu) == 1);
    REQUIRE(cpus.cpus.at(cpu).siblings.count(cpu) == 1);
    REQUIRE(cpus.cpus.at(cpu).cache_group.count(cpu) == 1);
  }
}

TEST_CASE("topology is read from sysfs", "[process][machine]") {
  const FakeSysfs sysfs;
  const std::string cpu = "devices/system/cpu/cpu3/";
  sysfs.write(cpu + "topology/physical_package_id", "1");
  sysfs.write(cpu + "topology/thread_siblings_list", "3,7");
  sysfs.write(cpu + "cache/index0/type", "Data");
  sysfs.write(cpu + "cache/index0/level", "1");
  sysfs.write(cpu + "cache/index0/shared_cpu_list", "3,7");
  sysfs.write(cpu + "cache/index3/type", "Unified");
  sysfs.write(cpu + "cache/index3/level", "3");
  sysfs.write(cpu + "cache/index3/shared_cpu_list", "0-7");
  sysfs.write(cpu + "cache/index4/type", "Instruction");
  sysfs.write(cpu + "cache/index4/level", "4");
  sysfs.write(cpu + "cache/index4/shared_cpu_list", "3");
  sysfs.write("devices/system/node/possible", "0-2");
  sysfs.write("devices/system/node/node0/cpulist", "0-3");
  sysfs.write("devices/system/node/node2/cpulist", "");
  sysfs.write("bus/pci/devices/0000:dc:00.0/numa_node", "2");
  sysfs.write("bus/pci/devices/0000:dd:00.0/numa_node", "-1");

  Cpus cpus;
  cpus.allowed = {3};
  read_topology(cpus, sysfs.root());
  REQUIRE(cpus.cpus.at(3) == Cpu{1, {3, 7}, {0, 1, 2, 3, 4, 5, 6, 7}});
  REQUIRE(cpus.nodes == std::map<int, CpuSet>{{0, {0, 1, 2, 3}}, {2, {}}});
  REQUIRE(pci_numa_node("0000:dc:00.0", sysfs.root()) == 2);
  REQUIRE(pci_numa_node("0000:dd:00.0", sysfs.root()) == 0);
  REQUIRE(pci_numa_node("0000:ee:00.0", sysfs.root()) == 0);
}

TEST_CASE("a kernel that shows no topology is one node of single cores", "[process][machine]") {
  const FakeSysfs sysfs;
  Cpus cpus;
  cpus.allowed = {0, 1};
  read_topology(cpus, sysfs.root());
  REQUIRE(cpus.cpus.at(1) == Cpu{0, {1}, {0, 1}});
  REQUIRE(cpus.nodes == std::map<int, CpuSet>{{0, {0, 1}}});
}

TEST_CASE("GPUs are what NVML says", "[process][machine]") {
  const std::size_t descriptors = open_descriptors();
  const Gpus gpus = ask_fake("two");
  REQUIRE(gpus.problem.empty());
  REQUIRE(gpus.list.size() == 2);
  REQUIRE(gpus.list[0].uuid == "GPU-00000000-aaaa");
  REQUIRE(gpus.list[0].name == "Fake GPU 0");
  REQUIRE(gpus.list[0].pci == "0000:1a:02.0");
  REQUIRE_FALSE(gpus.list[0].mig_enabled);
  REQUIRE(gpus.list[1].mig_enabled);
  REQUIRE(gpus.list[1].mig_instances == std::vector<std::string>{"MIG-1", "MIG-3"});
  REQUIRE_FALSE(has_children());
  REQUIRE(open_descriptors() == descriptors);
}

TEST_CASE("why there is no GPU is told", "[process][machine]") {
  REQUIRE(ask_fake("init_fails").problem == "NVML does not start: Driver/library version mismatch");
  const Gpus lost = ask_fake("lost");
  REQUIRE(lost.problem == "NVML does not know GPU 1: GPU is lost");
  REQUIRE(lost.list.empty());  // its number may be another's
  REQUIRE(lost.facts.size() == 2);
  REQUIRE_FALSE(lost.facts[0].lost);
  REQUIRE(lost.facts[1].lost);
  REQUIRE(ask_fake("dies").problem == "NVML ended without an answer");
  GpuQuery query;
  query.program = TORCHUP_PROGRAM;
  query.driver_check = false;
  query.library = "libno_such_nvml.so.1";
  REQUIRE(read_gpus(query).problem.find("libno_such_nvml.so.1: cannot open shared object file") == 0);
  REQUIRE_FALSE(has_children());
}

TEST_CASE("how GPUs are is what NVML says", "[process][machine]") {
  const Gpus ill = ask_fake("ill");
  REQUIRE(ill.driver == "570.86.15");
  REQUIRE(ill.facts.size() == 2);
  const GpuFacts& first = ill.facts[0];
  REQUIRE(first.name == "Fake GPU 0");
  REQUIRE(first.remap_pending);
  REQUIRE(first.uncorrected_ecc == 3);
  REQUIRE(first.thermal_slowdown);
  REQUIRE_FALSE(first.hardware_slowdown);
  REQUIRE(first.memory_bytes == std::int64_t{80} << 30);
  REQUIRE(first.free_bytes == std::int64_t{20} << 30);
  REQUIRE(first.holders.size() == 1);
  REQUIRE(first.holders[0].pid == 1);
  REQUIRE_FALSE(first.holders[0].name.empty());
  REQUIRE(ill.facts[1] == GpuFacts{.index = 1,
                                   .name = "Fake GPU 1",
                                   .memory_bytes = std::int64_t{80} << 30,
                                   .free_bytes = std::int64_t{79} << 30,
                                   .holders = first.holders});
}

TEST_CASE("a driver that hangs is left after the limit", "[process][machine]") {
  const auto start = std::chrono::steady_clock::now();
  REQUIRE(ask_fake("hangs", 200ms).problem == "the NVIDIA driver gave no answer within 200 ms");
  REQUIRE(std::chrono::steady_clock::now() - start < 60s);
  REQUIRE_FALSE(has_children());
}

TEST_CASE("facts are what other nodes get of them, however long, many or odd they are", "[process][machine]") {
  const std::string path(3'000, 'p');
  std::vector<std::string> environment{"PYTHONPATH=" + path + "/a", "TORCH_ODD=one\ntwo", "NCCL_DEBUG=INFO"};
  for (int i = 0; i < 400; ++i) environment.push_back("TORCH_" + std::to_string(1'000 + i) + "=1");
  const auto facts = node_facts(LaunchConfig{}, environment);
  REQUIRE(facts.size() == facts_max);
  for (const Fact& fact : facts) {
    INFO(fact.name << '=' << fact.value);
    CHECK(why_no_name(fact.name).empty());
    CHECK(why_no_name(fact.value).empty());
  }
  CHECK(std::ranges::count(facts, Fact{"NCCL_DEBUG", "INFO"}) == 1);
  CHECK(node_facts(LaunchConfig{}, environment) == facts);
  const std::vector<Fact> versions{{"torch", "2.15.0"}, {"NCCL", path}};
  const auto more = node_facts(LaunchConfig{}, environment, versions);
  REQUIRE(more.size() == facts_max);
  CHECK(std::ranges::count(more, versions[0]) == 1);
  CHECK(why_no_name(std::ranges::find(more, "NCCL", &Fact::name)->value).empty());
  // A difference that does not fit still counts.
  const auto differs = [&](std::size_t at, const std::string& variable) {
    std::vector<std::string> other = environment;
    other.at(at) = variable;
    return node_facts(LaunchConfig{}, other) != facts;
  };
  CHECK(differs(0, "PYTHONPATH=" + path + "/b"));
  CHECK(differs(1, "TORCH_ODD=one\rtwo"));
  CHECK(differs(environment.size() - 1, "TORCH_1399=2"));
}

TEST_CASE("the health port is there for this machine's own probes alone", "[process][machine]") {
  asio::io_context loop{1};
  auto health = HealthPort::open(loop, Port{0}, false, {[] { return "{}"; }, [] { return "ok"; }});
  REQUIRE(health.has_value());
  REQUIRE(connected(health->port(), 1));
  // One that listened at every address would be reached by this one too.
  REQUIRE_FALSE(connected(health->port(), 2));
}

TEST_CASE("a probe for which there is no descriptor waits, and keeps nobody busy", "[process][machine]") {
  asio::io_context loop{1};
  auto health = HealthPort::open(loop, Port{0}, false, {[] { return "{}"; }, [] { return "ok"; }});
  REQUIRE(health.has_value());
  const UniqueFd probe = connected(health->port(), 1);
  REQUIRE(probe);
  constexpr std::string_view question = "GET /healthz HTTP/1.0\r\n\r\n";
  REQUIRE(::send(probe.get(), question.data(), question.size(), 0) == static_cast<ssize_t>(question.size()));
  rlimit usual{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const rlimit none{0, usual.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const std::size_t turns = loop.run_for(500ms);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  REQUIRE(turns < 50);
  // And then it is answered.
  std::array<char, 16> answer{};
  const auto end = std::chrono::steady_clock::now() + 10s;
  ssize_t count = -1;
  while (count < 0 && std::chrono::steady_clock::now() < end) {
    loop.run_for(20ms);
    count = ::recv(probe.get(), answer.data(), answer.size(), MSG_DONTWAIT);
  }
  REQUIRE(std::string_view{answer.data(), answer.size()}.starts_with("HTTP/1."));
}
