#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <string>

#include "launcher/core/record/file_timers.hpp"

namespace torchup {

/// The file-timer watchdog: a named pipe in which workers set timers for themselves, and the end of those whose time is
/// up. Lives on one loop.
///
/// Only descendants of this process are ever signalled, whatever a line says. A worker whose time was up has failed,
/// however it ends; torchrun then ends itself by the same signal.
class Watchdog {
 public:
  /// One line for people about what it could not read.
  using Tell = std::function<void(std::string)>;
  /// The time of this process is up; it gets `signal` right after this call.
  using Expire = std::function<void(pid_t pid, std::string scope, int signal)>;
  Watchdog(boost::asio::io_context& loop, std::string path, Tell tell, Expire expire);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog() { close(); }

  /// Makes the pipe, in place of one that is there already. To be called before workers start.
  ///
  /// Errors: the system's; a file at the path that is no pipe is left alone.
  [[nodiscard]] Result<> open();
  /// Removes the pipe and all timers.
  void close();
  /// A process has ended: another one may get its number.
  void forget(std::int64_t pid) { timers_.forget(pid); }

 private:
  void wait_for_lines();
  void read_lines();
  void arm();
  void end_expired();

  std::string path_;
  Tell tell_;
  Expire expire_;
  boost::asio::posix::stream_descriptor pipe_;
  boost::asio::steady_timer timer_;
  FileTimers timers_;
  std::string unread_;  ///< the beginning of a line
};

}  // namespace torchup
