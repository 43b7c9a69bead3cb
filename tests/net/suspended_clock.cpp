// What lasting_now says where CLOCK_BOOTTIME has gone on and CLOCK_MONOTONIC has not, as while a machine is suspended:
// a time namespace whose boot time is a minute ahead is entered. Ends with 77 where the kernel does not allow that.

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "rendezvous/net/io/lasting_clock.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

int skip(const char* what) {
  std::printf("%s: %s\n", what, std::strerror(errno));
  return 77;
}

}  // namespace

int main() {
  const TimePoint lasting = lasting_now();
  const auto steady = std::chrono::steady_clock::now();
  if (::unshare(CLONE_NEWTIME) != 0) return skip("no new time namespace");
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
  return 0;
}
