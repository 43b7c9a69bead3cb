// Those who hear of what happens to a job: in which order, and what a hook leaves behind.

#include "launcher/os/agent/job_record.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/os/agent/from_plan.hpp"
#include "launcher/os/machine/descendants.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

/// A child with this pid that leads a session; 0: it cannot be had.
pid_t session_leader(pid_t pid) {
  for (int attempt = 0; attempt < 200; ++attempt) {
    if (!(std::ofstream{"/proc/sys/kernel/ns_last_pid"} << pid - 1).flush()) return 0;
    const pid_t child = ::fork();
    if (child == 0) {
      ::setsid();
      while (true) ::pause();
    }
    if (child == pid) {
      while (::getsid(child) != child) ::usleep(100);
      return child;
    }
    ::kill(child, SIGKILL);  // somebody else was faster
    ::waitpid(child, nullptr, 0);
  }
  return 0;
}

std::vector<pid_t> spared(JobRecord& job) {
  std::vector<pid_t> pids;
  job.spare(pids);
  return pids;
}

}  // namespace

TEST_CASE("who looks on hears of an event before the hook's failure over it", "[process][record]") {
  asio::io_context loop{1};
  LaunchConfig config;
  config.output.on_event = {"true", {"notice"}};
  Output output{loop, output_plan(config, "node"), [](EventBody) {}};
  JobRecord job{loop, config, "node", 1, output};
  std::vector<std::string> heard;
  JobRecord::Onlooker onlooker;
  onlooker.happened = [&](const LaunchEvent& event, std::string_view) { heard.push_back(event_name(event.body)); };
  job.set_onlooker(std::move(onlooker));
  // Of the first the hook is told, and so many wait: the last one is one too many.
  const std::size_t count = 1 + hook_waiting_max + 1;
  for (std::size_t i = 0; i < count; ++i) job.record(event::Notice{"so it is", LogLevel::debug});
  std::vector<std::string> expected(count, "notice");
  expected.emplace_back("hook_failed");
  CHECK(heard == expected);
  CHECK(::waitpid(-1, nullptr, 0) > 0);
}

TEST_CASE("a session that is over is the hook's no more", "[process][record]") {
  become_subreaper();
  const test::TemporaryFolder scratch;
  const std::string path = (scratch.path / "heir").string();
  asio::io_context loop{1};
  LaunchConfig config;
  config.output.on_event = {"sleep 1000 & echo $! > " + path, {"notice"}};
  Output output{loop, output_plan(config, "node"), [](EventBody) {}};
  JobRecord job{loop, config, "node", 1, output};
  job.record(event::Notice{"so it is", LogLevel::debug});
  pid_t heir = 0;
  for (const auto end = std::chrono::steady_clock::now() + 60s; heir == 0 || spared(job) != std::vector{heir};) {
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error{"no heir within 60 s"};
    loop.run_for(5ms);
    std::ifstream{path} >> heir;
  }
  const pid_t session = ::getsid(heir);
  CHECK(session != ::getsid(0));
  ::kill(heir, SIGKILL);
  REQUIRE(::waitpid(heir, nullptr, 0) == heir);
  CHECK(spared(job).empty());
  const pid_t stranger = session_leader(session);
  if (stranger == 0) {
    WARN("no process can be given that pid here");
    return;
  }
  CHECK(spared(job).empty());
  ::kill(stranger, SIGKILL);
  ::waitpid(stranger, nullptr, 0);
}
