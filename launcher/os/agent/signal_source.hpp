#pragma once

#include <sys/signalfd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>

#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// Whether a signal is somebody's wish: the kernel sends some by itself, a terminal's end is nobody's where
/// `hangup_ignored` (nohup), and a dismissal is only that of a front which we are `behind`.
[[nodiscard]] bool is_wish(const signalfd_siginfo& info, bool hangup_ignored, bool behind = false);

/// What reaches the inner process from outside the job: signals, and the end of the outer process. Lives on the loop.
class SignalSource {
 public:
  /// `lifeline`: at its end of file the outer process is gone, and `alone` is called.
  SignalSource(asio::io_context& loop, UniqueFd lifeline, std::function<void(const signalfd_siginfo&)> arrived,
               std::function<void()> alone);

  void start();

 private:
  void wait_for_signal();

  std::function<void(const signalfd_siginfo&)> arrived_;
  std::function<void()> alone_;
  asio::posix::stream_descriptor signals_;
  asio::posix::stream_descriptor lifeline_;
};

}  // namespace torchup
