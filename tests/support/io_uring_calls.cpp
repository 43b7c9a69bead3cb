#include "tests/support/io_uring_calls.hpp"

#include <dlfcn.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "rendezvous/net/store/send_batch.hpp"

namespace torchup::test {

IoUringCalls io_uring_calls;

void need_io_uring() {
  const auto made = SendBatch::make();
  if (made) return;
  std::printf("skipped: %s\n", made.error().message().c_str());
  std::exit(77);  // SKIP_RETURN_CODE
}

namespace {

long fails(int error) {
  errno = error;
  return -1;
}

}  // namespace
}  // namespace torchup::test

extern "C" long syscall(long number, ...) noexcept {
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
