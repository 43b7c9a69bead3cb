#include "launcher/os/worker/watchdog.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "launcher/os/machine/descendants.hpp"

namespace torchup {
namespace {

using namespace std::chrono_literals;

/// Workers count by the wall clock, which may jump: it is looked at this often while there are timers.
constexpr auto deadline_look = 1s;
constexpr std::size_t scope_shown_max = 256;

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

Watchdog::Watchdog(boost::asio::io_context& loop, std::string path, Tell tell, Expire expire)
    : path_{std::move(path)}, tell_{std::move(tell)}, expire_{std::move(expire)}, pipe_{loop}, timer_{loop} {}

Result<> Watchdog::open() {
  close();
  struct stat status {};
  if (::lstat(path_.c_str(), &status) == 0 && S_ISFIFO(status.st_mode)) ::unlink(path_.c_str());
  if (::mkfifo(path_.c_str(), 0600) != 0) return system_error("make the watchdog's pipe " + path_);
  // Open for writing too: a pipe without writers would be at its end again and again.
  const int fd = ::open(path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return system_error("open the watchdog's pipe " + path_);
  pipe_.assign(fd);
  wait_for_lines();
  return {};
}

void Watchdog::close() {
  timer_.cancel();
  timers_.clear();
  unread_.clear();
  if (!pipe_.is_open()) return;
  pipe_.close();
  ::unlink(path_.c_str());
}

void Watchdog::wait_for_lines() {
  pipe_.async_wait(pipe_.wait_read, [this](boost::system::error_code error) {
    if (error) return;
    read_lines();
    wait_for_lines();
  });
}

void Watchdog::read_lines() {
  std::array<char, 16 * timer_line_bytes_max> buffer;
  const ssize_t count = ::read(pipe_.native_handle(), buffer.data(), buffer.size());
  if (count <= 0) return;
  unread_.append(buffer.data(), static_cast<std::size_t>(count));
  std::string_view lines = unread_;
  for (auto end = lines.find('\n'); end != std::string_view::npos; end = lines.find('\n')) {
    const auto request = parse_timer_request(lines.substr(0, end));
    lines.remove_prefix(end + 1);
    const auto done = request ? timers_.apply(*request) : Result<>{request.error()};
    if (!done) tell_("watchdog: " + done.error().message());
  }
  unread_.erase(0, unread_.size() - lines.size());
  if (unread_.size() > timer_line_bytes_max) unread_.clear();  // its rest will be no JSON, and is told then
  arm();
}

void Watchdog::arm() {
  timer_.cancel();
  const auto next = timers_.next_s();
  if (!next) return;
  const std::chrono::duration<double> left{std::max(0.0, *next - now_s())};
  timer_.expires_after(left < deadline_look ? std::chrono::duration_cast<Duration>(left) + 1ms
                                            : Duration{deadline_look});
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) end_expired();
  });
}

void Watchdog::end_expired() {
  const auto expired = timers_.due(now_s());
  if (!expired.empty()) {
    const auto ours = descendants();
    for (const FileTimers::Expired& timer : expired) {
      if (timer.signal == 0) continue;
      const auto pid = static_cast<pid_t>(timer.pid);
      if (std::find(ours.begin(), ours.end(), pid) == ours.end()) continue;  // gone, or never ours
      expire_(pid, timer.scope.substr(0, scope_shown_max), timer.signal);
      ::kill(pid, timer.signal);
    }
  }
  arm();
}

}  // namespace torchup
