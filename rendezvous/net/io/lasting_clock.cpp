#include "rendezvous/net/io/lasting_clock.hpp"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <system_error>
#include <utility>

namespace torchup {

namespace asio = boost::asio;

namespace {

Duration boot_time() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds{now.tv_sec} + std::chrono::nanoseconds{now.tv_nsec};
}

/// How far the one clock is behind the other. They cannot be read at one time: the smallest of a few is the nearest.
Duration behind() {
  Duration least = Duration::max();
  for (int i = 0; i < 8; ++i) {
    const Duration monotonic = std::chrono::steady_clock::now().time_since_epoch();
    least = std::min(least, boot_time() - monotonic);
  }
  return least;
}

}  // namespace

TimePoint lasting_now() {
  static const Duration at_first = behind();
  return TimePoint{boot_time() - at_first};
}

struct LastingTimer::State : std::enable_shared_from_this<State> {
  explicit State(asio::io_context& loop) : descriptor{loop} {
    const int fd = ::timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK | TFD_CLOEXEC);
    if (fd < 0) throw std::system_error{errno, std::generic_category(), "timerfd_create"};
    descriptor.assign(fd);
  }

  void set(Duration after) {
    const auto whole = std::chrono::floor<std::chrono::seconds>(after);
    const itimerspec when{.it_interval = {},
                          .it_value = {.tv_sec = static_cast<std::time_t>(whole.count()),
                                       .tv_nsec = static_cast<long>((after - whole) / std::chrono::nanoseconds{1})}};
    ::timerfd_settime(descriptor.native_handle(), 0, &when, nullptr);
  }

  void wait() {
    if (std::exchange(waiting, true)) return;
    descriptor.async_wait(descriptor.wait_read, [self = shared_from_this()](const boost::system::error_code& error) {
      self->waiting = false;
      std::uint64_t times = 0;
      // Nothing to read where it was set anew since: then this was the former time's end.
      const bool due = !error && ::read(self->descriptor.native_handle(), &times, sizeof times) == sizeof times;
      if (!self->then) return;
      if (!due) return self->wait();
      const auto call = std::exchange(self->then, {});
      call();
    });
  }

  asio::posix::stream_descriptor descriptor;
  std::function<void()> then;
  bool waiting = false;
};

LastingTimer::LastingTimer(asio::io_context& loop) : state_{std::make_shared<State>(loop)} {}

LastingTimer::~LastingTimer() { cancel(); }

void LastingTimer::start(Duration after, std::function<void()> then) {
  state_->then = std::move(then);
  state_->set(std::max<Duration>(after, std::chrono::nanoseconds{1}));  // zero would disarm it
  state_->wait();
}

void LastingTimer::cancel() {
  state_->then = {};
  state_->set(Duration::zero());
  boost::system::error_code ignored;
  state_->descriptor.cancel(ignored);
}

}  // namespace torchup
