// What is looked at on a node, on this machine.
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

#include "launcher/os/diagnosis/health_check.hpp"
#include "launcher/os/diagnosis/nccl_probe.hpp"
#include "launcher/os/diagnosis/node_comparison.hpp"
#include "launcher/os/diagnosis/pair_probe.hpp"
#include "launcher/os/diagnosis/preflight_facts.hpp"
#include "launcher/os/output/run_directory.hpp"
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

template <class Condition>
void until(const Condition& condition) {
  for (const auto end = std::chrono::steady_clock::now() + 60s; !condition();) {
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error{"not within 60 s"};
    std::this_thread::sleep_for(1ms);
  }
}

sockaddr_in loopback(Port port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port.value());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

UniqueFd connected_to(Port port) {
  UniqueFd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const sockaddr_in address = loopback(port);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) socket.reset();
  return socket;
}

/// Waits for the other end to close it.
bool is_closed(int socket) {
  pollfd watched{socket, POLLIN, 0};
  char letter = 0;
  return ::poll(&watched, 1, 60'000) == 1 && ::recv(socket, &letter, 1, 0) <= 0;
}

/// Takes one connection, and answers a letter every half a second.
class SlowEnd {
 public:
  SlowEnd() {
    sockaddr_in address = loopback(Port{0});
    socklen_t size = sizeof address;
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener_.get(), raw, size) != 0 || ::listen(listener_.get(), 1) != 0 ||
        ::getsockname(listener_.get(), raw, &size) != 0) {
      throw std::runtime_error{"no port"};
    }
    port_ = Port{ntohs(address.sin_port)};
    thread_ = std::thread{[this] { answer(); }};
  }
  ~SlowEnd() {
    ::eventfd_write(end_.get(), 1);
    thread_.join();
  }
  SlowEnd(const SlowEnd&) = delete;
  SlowEnd& operator=(const SlowEnd&) = delete;
  [[nodiscard]] Port port() const { return port_; }

 private:
  void answer() const {
    std::array<pollfd, 2> watched{pollfd{listener_.get(), POLLIN, 0}, pollfd{end_.get(), POLLIN, 0}};
    ::poll(watched.data(), watched.size(), -1);
    if (watched[1].revents != 0) return;
    const UniqueFd peer{::accept(listener_.get(), nullptr, nullptr)};
    pollfd ended{end_.get(), POLLIN, 0};
    while (::poll(&ended, 1, 500) == 0) static_cast<void>(::send(peer.get(), "a", 1, MSG_NOSIGNAL));
  }

  UniqueFd listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd end_{::eventfd(0, EFD_CLOEXEC)};
  Port port_{0};
  std::thread thread_;
};

}  // namespace

TEST_CASE("quick facts start no process", "[process][checks]") {
  PreflightPlaces places;
  places.log_folder = "/tmp/no/such";
  places.temporary_folders = temporary_places();
  static_cast<void>(preflight_findings(read_preflight_facts(places, PreflightLevel::quick), PreflightLevel::quick));
  REQUIRE_FALSE(has_children());
}

TEST_CASE("facts are this machine's", "[process][checks]") {
  const test::TemporaryFolder folder;
  PreflightPlaces places;
  places.log_folder = (folder.path / "not/yet").string();
  places.temporary_folders = {folder.path.string()};
  const PreflightFacts facts = read_preflight_facts(places, PreflightLevel::full, 100s);
  REQUIRE(facts.shm_free_bytes);
  REQUIRE(facts.disks.size() == 2);
  for (const DiskFacts& disk : facts.disks) {
    INFO(disk.path << ": " << disk.problem);
    REQUIRE(disk.free_bytes);
    REQUIRE(disk.fsync);
    REQUIRE(disk.problem.empty());
  }
  REQUIRE(facts.gpu_problem.empty());
  REQUIRE(look_at_disk(DiskUse::temporary, {folder.path.string()}, false).fsync == std::nullopt);
  REQUIRE_FALSE(look_at_disk(DiskUse::logs, {"/proc/self"}, true).problem.empty());
  // As the run itself chooses.
  REQUIRE(look_at_disk(DiskUse::temporary, {"/no/such", folder.path.string()}, true).path == folder.path.string());
  REQUIRE(look_at_disk(DiskUse::temporary, {"/no/such", "/no/other"}, false).path == "/no/such");
}

TEST_CASE("a disk that somebody still waits for is not asked again, and keeps nobody waiting", "[process][checks]") {
  const test::TemporaryFolder folder;
  PreflightPlaces places;
  places.temporary_folders = {folder.path.string()};
  REQUIRE(places.asked->begin(DiskUse::temporary));
  for (const PreflightLevel level : {PreflightLevel::quick, PreflightLevel::full}) {
    REQUIRE(read_preflight_facts(places, level, 100s).disks.at(0).problem == "the disk does not answer");
  }
  places.asked->end(DiskUse::temporary);
  REQUIRE(read_preflight_facts(places, PreflightLevel::quick, 100s).disks.at(0).problem.empty());
}

TEST_CASE("versions lie beside the Python that is meant", "[process][checks]") {
  const test::TemporaryFolder folder;
  const auto make = [&](const std::string& path) { std::filesystem::create_directories(folder.path / path); };
  make("bin");
  std::ofstream{folder.path / "bin/python3.11"} << "x";
  std::filesystem::create_symlink("python3.11", folder.path / "bin/python3");
  const std::string python = (folder.path / "bin/python3").string();
  const auto of = [&](const std::string& name) {
    for (const Fact& fact : version_facts(python, "570.86")) {
      if (fact.name == name) return fact.value;
    }
    return std::string{};
  };
  REQUIRE(of("torch").empty());
  REQUIRE(of("NVIDIA driver") == "570.86");
  make("lib/python3.11/site-packages/torch-2.15.0.dist-info");
  make("lib/python3.11/site-packages/torchvision-9.dist-info");
  make("lib/python3.12/site-packages/torch-2.9.1.dist-info");  // another Python's
  make("local/lib/python3.11/dist-packages/nvidia_nccl_cu12-2.27.5.dist-info");
  std::filesystem::create_symlink("lib", folder.path / "lib64");
  REQUIRE(of("torch") == "2.15.0");
  REQUIRE(of("NCCL") == "2.27.5");
  make("lib/python3/dist-packages/torch-2.6.0.dist-info");
  REQUIRE(of("torch") == "2.15.0 and 2.6.0");
  REQUIRE(version_facts_within(100s, python, "570.86") == version_facts(python, "570.86"));

  std::promise<std::vector<Fact>> folder_answers;
  const auto never = [answer = folder_answers.get_future().share()] { return answer.get(); };
  REQUIRE(facts_within(1ms, never).at(0).value.starts_with("not known"));
  folder_answers.set_value({});
}

TEST_CASE("only the GPUs of the job are looked at", "[process][checks]") {
  PreflightPlaces places;
  places.gpus_found.facts = {{.index = 0}, {.index = 1, .lost = true}, {.index = 2}};
  places.gpus_found.problem = "NVML does not know GPU 1: GPU is lost";
  REQUIRE(read_preflight_facts(places, PreflightLevel::quick).gpus.size() == 3);
  REQUIRE(read_preflight_facts(places, PreflightLevel::quick).gpu_problem.empty());  // the lost one says it better
  places.gpus = {0, 2};
  REQUIRE(read_preflight_facts(places, PreflightLevel::quick).gpus.size() == 2);
  places.gpus_found = {{}, std::string{no_driver}, {}, {}};
  REQUIRE(read_preflight_facts(places, PreflightLevel::quick).gpu_problem.empty());
  places.gpus_found.problem = "the NVIDIA driver gave no answer within 10000 ms";
  REQUIRE(read_preflight_facts(places, PreflightLevel::quick).gpu_problem == places.gpus_found.problem);
}

TEST_CASE("a health check has its limit, and leaves nothing behind", "[process][checks]") {
  const auto finding = check_health(query_of("echo waiting; setsid sleep 4245 & trap '' TERM; sleep 4245", 2s));
  REQUIRE(finding);
  REQUIRE(finding->text == "--health-check did not end within 2 s: waiting");
  REQUIRE_FALSE(has_children());
}

TEST_CASE("a health check that is cancelled is gone, and finds nothing", "[process][checks]") {
  const test::TemporaryFolder folder;
  const std::string started = (folder.path / "started").string();
  const UniqueFd end{::eventfd(0, EFD_CLOEXEC)};
  HealthQuery query = query_of("trap '' TERM; touch " + started + "; sleep 4246", health_check_limit);
  query.cancelled = end.get();
  std::thread canceller{[&] {
    until([&] { return ::access(started.c_str(), F_OK) == 0; });
    ::eventfd_write(end.get(), 1);
  }};
  REQUIRE_FALSE(check_health(query));
  canceller.join();
  REQUIRE_FALSE(has_children());
}

TEST_CASE("a health check's words have limits below the kernel's", "[process][checks]") {
  HealthQuery query = query_of("test ${#TORCHUP_LAST_FAILURE} = 4096");
  query.last_failure = std::string(last_failure_bytes_max, 'x');
  REQUIRE_FALSE(check_health(query));
  query.command = ":" + std::string(health_check_bytes_max - 1, ' ');
  REQUIRE_FALSE(check_health(query));
  query.command = ":" + std::string(std::size_t{128} << 10, ' ');
  REQUIRE(check_health(query)->level == FindingLevel::unfit);
}

TEST_CASE("where no descriptor is left a helper is an error, and leaves nothing behind", "[process][checks]") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  for (rlim_t most = 3; most < 16; ++most) {  // wherever it fails
    const rlimit few{most, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    const auto finding = check_health(query_of("exit 3"));
    ::setrlimit(RLIMIT_NOFILE, &before);
    REQUIRE(finding);
    REQUIRE(finding->level == FindingLevel::unfit);
    until([] { return !has_children(); });
  }
}

TEST_CASE("the way between two ends is tried", "[process][checks]") {
  auto end = PairEnd::open();
  REQUIRE(end.has_value());
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
    REQUIRE_FALSE(probe_again(pair, way, -1));
  }
  SECTION("it is tried again") { REQUIRE(probe_again(pair, way, -1)->connected); }
  SECTION("an end without an address") { REQUIRE_FALSE(probe_pair(pair, {"", Port{1}, "x"}).connected); }
}

TEST_CASE("strangers at the end of a pair keep nobody waiting", "[process][checks]") {
  auto end = PairEnd::open();
  REQUIRE(end.has_value());
  const NodePair pair{GroupRank{0}, GroupRank{1}};
  const PairWay way{"127.0.0.1", (*end)->port(), (*end)->secret()};
  std::vector<UniqueFd> strangers;
  for (std::size_t i = 0; i < 2 * pair_strangers_max; ++i) {
    strangers.push_back(connected_to(way.port));
    // Silent ones, slow ones, and those who say too much.
    const std::string words = i % 3 == 0 ? "" : i % 3 == 1 ? "a" : std::string(1000, 'b');
    static_cast<void>(::send(strangers.back().get(), words.data(), words.size(), MSG_NOSIGNAL));
  }
  const PairResult result = probe_pair(pair, way);
  INFO(result.problem);
  REQUIRE(result.connected);                                                      // within pair_limit
  for (const UniqueFd& stranger : strangers) REQUIRE(is_closed(stranger.get()));  // none is kept for ever
}

TEST_CASE("the end of a pair ends, whoever is connected", "[process][checks]") {
  auto end = PairEnd::open();
  REQUIRE(end.has_value());
  const UniqueFd member = connected_to((*end)->port());
  REQUIRE(::send(member.get(), (*end)->secret().data(), (*end)->secret().size(), MSG_NOSIGNAL) == 32);
  char letter = 'a';
  REQUIRE(::send(member.get(), &letter, 1, MSG_NOSIGNAL) == 1);
  REQUIRE(::recv(member.get(), &letter, 1, MSG_WAITALL) == 1);  // it is our turn now, until pair_limit
  const auto begin = std::chrono::steady_clock::now();
  end->reset();
  REQUIRE(std::chrono::steady_clock::now() - begin < pair_limit - 1s);
}

TEST_CASE("a pair whose other end is slow has a limit, and can be cancelled", "[process][checks]") {
  const SlowEnd slow;
  const NodePair pair{GroupRank{0}, GroupRank{1}};
  const PairWay way{"127.0.0.1", slow.port(), std::string(32, 's')};
  SECTION("it answers a letter now and then, for ever") {
    const PairResult result = probe_pair(pair, way);
    REQUIRE_FALSE(result.connected);
    REQUIRE(result.problem == "Connection timed out");
  }
  SECTION("nobody wants it any more") {
    const UniqueFd cancel{::eventfd(1, EFD_CLOEXEC)};
    REQUIRE(probe_pair(pair, way, cancel.get()).problem == "Operation canceled");
  }
}

TEST_CASE("what all_reduce says of its rate is read, and nothing else", "[process][checks]") {
  const std::string table =
      "all_reduce, nccl, 2 ranks, float\n       bytes    median us algorithm GB/s       bus GB/s\n";
  const std::string row = "    67108864        500.0         12.500         12.500\n";
  REQUIRE(all_reduce_rate(table + row, nccl_pair_bytes) == 12'500'000'000);
  REQUIRE(all_reduce_rate("NCCL INFO x\n" + table + row + "NCCL INFO 67108864 a b c\n", nccl_pair_bytes));
  REQUIRE_FALSE(all_reduce_rate(table, nccl_pair_bytes));
  REQUIRE_FALSE(all_reduce_rate(table + row, 4));
  REQUIRE_FALSE(all_reduce_rate("67108864 1 nan 1\n67108864 1 -1 1\n67108864 1 x 1\n", nccl_pair_bytes));
  REQUIRE(all_reduce_rate("67108864 1 1e300 1\n", nccl_pair_bytes) == 1'000'000'000'000'000);
  REQUIRE_FALSE(all_reduce_rate("", nccl_pair_bytes));
}

TEST_CASE("an all_reduce that cannot compute with NCCL says why, in time", "[process][checks]") {
  const test::TemporaryFolder folder;
  const auto program = [&](const std::string& text) {
    const auto path = folder.path / "all_reduce";
    std::ofstream{path} << "#!/bin/sh\n" << text << '\n';
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return NcclProgram{.path = path.string(), .gpus = "1"};
  };
  REQUIRE(why_no_nccl(program("echo first; echo 'no NCCL here' >&2; exit 1")) == "all_reduce: no NCCL here");
  REQUIRE(why_no_nccl(program("exit 0")) == "all_reduce: it said nothing");
  REQUIRE_FALSE(why_no_nccl(program("test \"$CUDA_VISIBLE_DEVICES\" = 1 && echo 4 1 0.1 0.1")));
  NcclProgram hangs = program("sleep 4247");
  hangs.limit = 200ms;
  REQUIRE(why_no_nccl(hangs) == "all_reduce did not end within 0.2 s");
  const NodePair pair{GroupRank{0}, GroupRank{1}};
  const NcclEnd end{.rank = 1, .master_addr = "10.0.0.1", .master_port = Port{77}};
  const std::string says =
      "test $RANK.$WORLD_SIZE.$MASTER_ADDR.$MASTER_PORT.$TORCHELASTIC_USE_AGENT_STORE = 1.2.10.0.0.1.77. && ";
  REQUIRE(probe_nccl_pair(pair, end, program(says + "echo 67108864 1 2.5 2.5")).bytes_per_s == 2'500'000'000);
  REQUIRE(probe_nccl_pair(pair, end, program("echo broken; exit 1")).problem == "all_reduce: broken");
  REQUIRE_FALSE(has_children());
}

TEST_CASE("a condemned node is fit again when its ways are, or when nobody is there any more", "[process][checks]") {
  auto end = PairEnd::open();
  REQUIRE(end.has_value());
  CondemnedWays ways;
  ways.own = GroupRank{1};
  ways.hosts = {"nodea", "nodeb"};
  ways.others.emplace_back(NodePair{GroupRank{0}, GroupRank{1}},
                           PairWay{"127.0.0.1", (*end)->port(), (*end)->secret()});
  ways.median = 1;
  REQUIRE_FALSE(try_again(ways, -1));
  ways.median = 1e15;
  REQUIRE(try_again(ways, -1)->text.starts_with("nodeb has 1 of 1 pairs bad: "));
  const UniqueFd cancel{::eventfd(1, EFD_CLOEXEC)};
  ways.others[0].second.secret = std::string(32, '0');
  REQUIRE(try_again(ways, cancel.get()));
  end->reset();
  REQUIRE_FALSE(try_again(ways, -1));
  REQUIRE_FALSE(try_again({}, -1));
}
