#include "worker_runtime/store/cancellation.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace torchup {

int store_calls_cancelled() {
  static const int event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return event;
}

void cancel_store_calls() {
  const std::uint64_t one = 1;
  (void)!::write(store_calls_cancelled(), &one, sizeof one);  // can only fail where it is readable already
}

void allow_store_calls() {
  std::uint64_t count = 0;
  (void)!::read(store_calls_cancelled(), &count, sizeof count);  // fails where nothing was cancelled
}

}  // namespace torchup
