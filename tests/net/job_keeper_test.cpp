// The disk of these tests stands still, or fails, where they want it to: the calls that make a write last are here.
#include "rendezvous/net/coordinator/job_keeper.hpp"

#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "rendezvous/core/membership/job_codec.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/coordinator/state_directory.hpp"
#include "tests/support/long_running.hpp"

using namespace torchup;
using namespace std::chrono_literals;
namespace asio = boost::asio;
namespace fs = std::filesystem;

namespace {

class Disk {
 public:
  void stand_still() {
    const std::lock_guard guard{mutex_};
    still_ = true;
  }
  void go_on() {
    const std::lock_guard guard{mutex_};
    still_ = false;
    awake_.notify_all();
  }
  void fail(bool fails) { fails_ = fails; }
  /// Returns when the write that called it may be finished; -1: it fails.
  int finish_write() {
    std::unique_lock guard{mutex_};
    ++waiting_;
    awake_.wait(guard, [this] { return !still_; });
    --waiting_;
    if (!fails_) return 0;
    errno = EIO;
    return -1;
  }
  [[nodiscard]] bool somebody_waits() {
    const std::lock_guard guard{mutex_};
    return waiting_ > 0;
  }
  std::atomic<int> folders_flushed = 0;

 private:
  std::mutex mutex_;
  std::condition_variable awake_;
  bool still_ = false;
  int waiting_ = 0;
  std::atomic<bool> fails_ = false;
};

Disk& disk() {
  static Disk only;
  return only;
}

}  // namespace

extern "C" int fdatasync(int fd) {
  if (disk().finish_write() != 0) return -1;
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}

/// Of folders alone: files are flushed by fdatasync.
extern "C" int fsync(int fd) {
  ++disk().folders_flushed;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace {

struct StateFolder {
  StateFolder() {
    path = fs::temp_directory_path() / "torchup-keeper-XXXXXX";
    REQUIRE(::mkdtemp(path.data()));
  }
  ~StateFolder() {
    disk().go_on();
    disk().fail(false);
    fs::remove_all(path);
  }
  StateFolder(const StateFolder&) = delete;
  StateFolder& operator=(const StateFolder&) = delete;
  [[nodiscard]] std::optional<SavedJob> job(const std::string& name = "job-0.state") const {
    std::string content;
    if (FILE* const file = std::fopen((path + "/" + name).c_str(), "rb")) {
      char piece[4096];
      while (const std::size_t count = std::fread(piece, 1, sizeof piece, file)) content.append(piece, count);
      std::fclose(file);
    }
    if (content.empty()) return std::nullopt;
    return *decode_job(content);
  }
  std::string path;
};

/// An agent of another process: what it was told so far.
struct RemoteAgent final : Coordinator::Listener {
  RemoteAgent(Coordinator& coordinator, const std::string& address, const std::string& run_id = "job")
      : attendance{coordinator.open(RunId{run_id}, {.observed = address, .coordinator = "10.0.0.100"}, *this)} {}
  void tell(CoordinatorMessage message) override { heard.push_back(std::move(message)); }
  void refuse(int, std::string) override {}
  void let_go(std::string) override {}
  template <class T>
  [[nodiscard]] int count() const {
    int found = 0;
    for (const auto& message : heard) found += std::holds_alternative<T>(message);
    return found;
  }
  static Join join_of(const std::string& host, int min_nodes, int max_nodes, Duration lease = 30s) {
    Join join;
    join.node = NodeId{host + "_1_0"};
    join.host = host;
    join.terms.min_nodes = min_nodes;
    join.terms.max_nodes = max_nodes;
    join.terms.last_call = Duration::zero();
    join.terms.lease = lease;
    return join;
  }
  void join(const std::string& host, int min_nodes, int max_nodes, Duration lease = 30s) {
    attendance->said(join_of(host, min_nodes, max_nodes, lease));
  }
  std::vector<CoordinatorMessage> heard;
  std::unique_ptr<Coordinator::Attendance> attendance;
};

struct KeptJob {
  explicit KeptJob(const std::string& path) : directory{*StateDirectory::open(loop, path)} {
    REQUIRE(coordinator.keep_state(*directory).has_value());
  }
  bool run_until(const std::function<bool()>& condition) {
    const auto limit = std::chrono::steady_clock::now() + 60s;
    while (!condition() && std::chrono::steady_clock::now() < limit) {
      loop.restart();
      loop.run_one_for(10ms);
    }
    return condition();
  }
  asio::io_context loop;
  std::unique_ptr<StateDirectory> directory;
  std::vector<std::string> log;
  Coordinator coordinator{loop, [this](const LogLine& line) { log.push_back(line.text); }, test::long_running()};
};

}  // namespace

TEST_CASE("nothing is told before it would survive a power cut", "[net][job_keeper]") {
  StateFolder folder;
  KeptJob kept{folder.path};
  disk().stand_still();
  RemoteAgent agent{kept.coordinator, "10.0.0.1"};
  agent.join("a", 1, 1);
  REQUIRE(kept.run_until([] { return disk().somebody_waits(); }));
  kept.loop.restart();
  kept.loop.poll();
  REQUIRE(agent.count<HostStore>() == 0);
  REQUIRE_FALSE(folder.job());
  disk().go_on();
  REQUIRE(kept.run_until([&] { return agent.count<HostStore>() == 1; }));
  REQUIRE(folder.job().has_value());
  REQUIRE(folder.job()->snapshot.members.size() == 1);
}

TEST_CASE("a fence overtakes what waits for the disk, and takes its place", "[net][job_keeper]") {
  StateFolder folder;
  KeptJob kept{folder.path};
  auto silent = std::make_unique<RemoteAgent>(kept.coordinator, "10.0.0.1");
  RemoteAgent lively{kept.coordinator, "10.0.0.2"};
  // A lease is over, even one that is granted again, long before the keeper waits no longer for the disk.
  constexpr auto lease = JobKeeper::slow_limit / 4;
  silent->join("a", 1, 2, lease);
  lively.join("b", 1, 2, lease);
  REQUIRE(kept.run_until([&] {
    silent->attendance->alive();
    lively.attendance->alive();
    return silent->count<HostStore>() + lively.count<HostStore>() >= 1;
  }));
  RemoteAgent& host = silent->count<HostStore>() > 0 ? *silent : lively;
  disk().stand_still();
  host.attendance->said(StoreReady{std::get<HostStore>(host.heard.back()).round, Port{4000}});
  REQUIRE(kept.run_until([] { return disk().somebody_waits(); }));
  const auto fenced = [&] {
    lively.attendance->alive();
    const auto* stop = silent->heard.empty() ? nullptr : std::get_if<StopWorkers>(&silent->heard.back());
    return stop && stop->cause == StopCause::fenced;
  };
  REQUIRE(kept.run_until(fenced));
  REQUIRE(silent->count<Placed>() == 0);
  disk().go_on();
  REQUIRE(kept.run_until([&] { return lively.count<Placed>() + lively.count<StopWorkers>() > 0; }));
  REQUIRE(silent->count<Placed>() == 0);
}

TEST_CASE("a state that could not be written is written when the disk is well again", "[net][job_keeper]") {
  StateFolder folder;
  KeptJob kept{folder.path};
  disk().fail(true);
  RemoteAgent agent{kept.coordinator, "10.0.0.1"};
  agent.join("a", 1, 1);
  REQUIRE(kept.run_until([&] { return agent.count<HostStore>() == 1; }));  // the job goes on
  REQUIRE_FALSE(folder.job());
  disk().fail(false);
  REQUIRE(kept.run_until([&] {
    agent.attendance->alive();  // nothing of the job changes any more
    return folder.job().has_value();
  }));
}

TEST_CASE("a job that nobody joins costs the disk nothing", "[net][job_keeper]") {
  StateFolder folder;
  const int before = disk().folders_flushed;
  {
    KeptJob kept{folder.path};
    for (int i = 0; i < 100; ++i) {
      const RemoteAgent stranger{kept.coordinator, "10.0.0.1"};
    }
    REQUIRE(kept.coordinator.job_count() == 0);
  }
  REQUIRE_FALSE(fs::exists(folder.path + "/job-0.state"));
  REQUIRE(disk().folders_flushed == before);
}

TEST_CASE("removals wait for writes, and flush the folder once", "[net][state_directory]") {
  StateFolder folder;
  asio::io_context loop;
  const int before = disk().folders_flushed;
  {
    auto directory = *StateDirectory::open(loop, folder.path);
    disk().stand_still();
    directory->write(0, [] { return std::string{"held up"}; }, {});
    while (!disk().somebody_waits()) std::this_thread::yield();
    for (std::uint64_t number = 0; number < 100; ++number) directory->remove(number);
    directory->write(200, [] { return std::string{"of a living job"}; }, {});
    directory->write(201, [] { return std::string{"of one that has gone"}; }, {});
    directory->remove(201);
    disk().go_on();
  }
  REQUIRE(disk().folders_flushed == before + 3);  // two writes, one run of removals
  REQUIRE(fs::exists(folder.path + "/job-200.state"));
  REQUIRE_FALSE(fs::exists(folder.path + "/job-201.state"));
  REQUIRE_FALSE(fs::exists(folder.path + "/job-0.state"));
}

TEST_CASE("a process that ends by a fault of its own leaves the state that a kill would", "[net][job_keeper]") {
  StateFolder folder;
  {
    KeptJob kept{folder.path};
    RemoteAgent agent{kept.coordinator, "10.0.0.1"};
    agent.join("a", 1, 1);
    REQUIRE(kept.run_until([&] { return agent.count<HostStore>() == 1 && folder.job(); }));
    SECTION("by a fault") { kept.coordinator.abandon_state(); }
    SECTION("in good order") { kept.coordinator.release_state(); }
    agent.attendance.reset();  // as when its connection is closed by our end
    kept.loop.restart();
    kept.loop.poll();
  }
  REQUIRE(folder.job().has_value());
  REQUIRE(folder.job()->snapshot.members.size() == 1);
  REQUIRE_FALSE(folder.job()->snapshot.verdict.has_value());
}

TEST_CASE("of two files of one run id the later one stands, and the other goes", "[net][job_keeper]") {
  StateFolder folder;
  {
    KeptJob kept{folder.path};
    RemoteAgent agent{kept.coordinator, "10.0.0.1"};
    agent.join("a", 1, 1);
    REQUIRE(kept.run_until([&] { return agent.count<HostStore>() == 1 && folder.job(); }));
    kept.coordinator.abandon_state();
  }
  SavedJob later = *folder.job();
  later.snapshot.restart_count = 3;
  {
    asio::io_context loop;
    auto directory = *StateDirectory::open(loop, folder.path);
    directory->write(7, [later] { return encode_job(later); }, {});
  }
  KeptJob kept{folder.path};
  REQUIRE(kept.coordinator.jobs().size() == 1);
  REQUIRE(kept.coordinator.jobs().front().second.restart_count == 3);
  const std::string removed = fmt::format("file 0 in {} is of an earlier job of this run id: removed", folder.path);
  REQUIRE_THAT(kept.log, Catch::VectorContains(removed));
  REQUIRE(kept.run_until([&] { return !folder.job(); }));
  // The number of the next job is behind both.
  RemoteAgent other{kept.coordinator, "10.0.0.2", "other"};
  other.join("b", 1, 1);
  REQUIRE(kept.run_until([&] { return folder.job("job-8.state").has_value(); }));
  REQUIRE(folder.job("job-8.state")->run_id.value() == "other");
}

TEST_CASE("where a round's workers come from is known before their agents are back", "[net][job_keeper]") {
  StateFolder folder;
  Join other = RemoteAgent::join_of("b", 2, 2);
  other.addresses = {"192.0.2.7"};
  {
    KeptJob kept{folder.path};
    RemoteAgent first{kept.coordinator, "10.0.0.1"}, second{kept.coordinator, "10.0.0.2"};
    second.attendance->said(other);
    first.join("a", 2, 2);
    REQUIRE(kept.run_until([&] { return first.count<HostStore>() == 1; }));
    kept.coordinator.abandon_state();
  }
  KeptJob kept{folder.path};
  REQUIRE(kept.coordinator.knows_address("10.0.0.2"));
  RemoteAgent first{kept.coordinator, "10.0.0.1"};
  first.attendance->resumed({.join = RemoteAgent::join_of("a", 2, 2)});
  REQUIRE(kept.run_until([&] { return first.count<HostStore>() == 1; }));
  REQUIRE(std::get<HostStore>(first.heard.back()).sources ==
          std::vector<std::string>{"10.0.0.1", "10.0.0.2", "192.0.2.7"});
}
