#include "tests/support/io_uring_calls.hpp"

#include <dlfcn.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup::test {

IoUringCalls io_uring_calls;

/// Asks for what SendBatch needs, but not SendBatch: its faults are no reason to skip its tests.
void need_io_uring() {
  io_uring_params setup{};
  setup.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  const UniqueFd ring{static_cast<int>(::syscall(__NR_io_uring_setup, 1, &setup))};
  if (ring) return;
  std::perror("skipped: io_uring_setup");
  std::exit(77);  // SKIP_RETURN_CODE
}

namespace {

long fails(int error) {
  errno = error;
  return -1;
}

}  // namespace
}  // namespace torchup::test

/// As many arguments as a call can have are handed on, those that the caller has given and what lies behind them.
extern "C" [[gnu::no_sanitize_address]] long syscall(long number, ...) noexcept {
  using Call = long (*)(long, ...);
  static const auto kernel = reinterpret_cast<Call>(::dlsym(RTLD_NEXT, "syscall"));
  using namespace torchup::test;
  long arguments[6];
  va_list list;
  va_start(list, number);
  for (long& each : arguments) each = va_arg(list, long);
  va_end(list);
  IoUringCalls& calls = io_uring_calls;
  if (number == __NR_io_uring_setup && calls.setup_error != 0) return fails(calls.setup_error);
  if (number == __NR_io_uring_enter) {
    ++calls.entered;
    if (calls.takes_nothing) return static_cast<int>(arguments[1]);
    if (calls.enter_error != 0) return fails(calls.enter_error);
    const long asked = static_cast<unsigned>(arguments[1]);
    if (std::exchange(calls.took_less, false) && calls.second_error != 0) return fails(calls.second_error);
    if (calls.taken_max != 0) arguments[1] = std::min<long>(asked, calls.taken_max);
    calls.took_less = arguments[1] < asked;
  }
  return kernel(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}
