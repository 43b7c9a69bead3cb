// What is told the time where CLOCK_BOOTTIME has gone on and CLOCK_MONOTONIC has not, as while a machine is suspended:
// a time namespace whose boot time is a minute ahead is entered. Ends with 77 where the kernel does not allow that.

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/io/lasting_clock.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

int skip(const char* what) {
  std::printf("%s: %s\n", what, std::strerror(errno));
  return 77;
}

/// Whoever may not have a time namespace may have a user namespace, in which it may.
bool leave_time() {
  if (::unshare(CLONE_NEWTIME) == 0) return true;
  return errno == EPERM && ::unshare(CLONE_NEWUSER | CLONE_NEWTIME) == 0;
}

struct Agent final : Coordinator::Listener {
  void tell(CoordinatorMessage) override {}
  void refuse(int, std::string) override {}
  void let_go(std::string) override {}
};

}  // namespace

int main() {
  boost::asio::io_context loop;
  bool noticed = false;
  const std::string notice = to_text(CoordinatorSlept{});
  Coordinator coordinator{loop, [&](const LogLine& line) { noticed = noticed || line.text == notice; }};
  Agent agent;
  const auto attendance = coordinator.open(RunId{"job"}, {.observed = "10.0.0.1"}, agent);
  Join join;
  join.node = NodeId{"a_1_0"};
  join.terms = {.min_nodes = 2, .max_nodes = 2};
  attendance->said(join);

  const TimePoint lasting = lasting_now();
  const auto steady = std::chrono::steady_clock::now();
  if (!leave_time()) return skip("no new time namespace");
  {
    const UniqueFd offsets{::open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC)};
    constexpr char minute[] = "boottime 60 0";
    if (::write(offsets.get(), minute, sizeof minute - 1) < 0) return skip("its clock cannot be set");
  }
  const UniqueFd namespace_of_children{::open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC)};
  if (::setns(namespace_of_children.get(), CLONE_NEWTIME) != 0) return skip("it cannot be entered");
  const Duration passed = std::chrono::steady_clock::now() - steady, lasted = lasting_now() - lasting;
  if (passed > 30s || lasted < 60s) {
    std::printf("%lld ms have passed, %lld ms by the clock that lasts\n", static_cast<long long>(passed / 1ms),
                static_cast<long long>(lasted / 1ms));
    return 1;
  }
  attendance->alive();
  if (!noticed) {
    std::printf("a coordinator does not notice that its machine was suspended\n");
    return 1;
  }
  return 0;
}
