#include "launcher/os/console_writer.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <thread>

#include "launcher/os/bounded_queue.hpp"
#include "launcher/os/writer_thread.hpp"
#include "rendezvous/net/unique_fd.hpp"

namespace torchup {
namespace {

/// Writes all of it, waiting as long as it takes. Returns the errno that ended it, or 0; `bytes` keeps what is left.
int write_patiently(int fd, std::string_view& bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return errno;
    pollfd waiting{fd, POLLOUT, 0};  // somebody else who shares it has made it non-blocking
    ::poll(&waiting, 1, -1);
  }
  return 0;
}

bool is_gone(int error) { return error == EPIPE || error == EIO || error == EBADF || error == ENXIO; }

}  // namespace

struct ConsoleWriter::State {
  UniqueFd fd;
  bool terminal = false;
  std::function<void(std::string, std::uint64_t)> failed;
  BoundedQueue<std::string> queue;
  std::atomic<std::uint64_t> lost = 0;

  void run() {
    bool gone = !fd;
    int last_error = 0;
    for (;;) {
      const auto messages = queue.take();
      if (messages.empty()) return;
      for (const std::string& message : messages) {
        std::string_view rest = message;
        const int error = gone ? 0 : write_patiently(fd.get(), rest);
        if (fd) lost += rest.size();
        if (error != 0 && error != last_error) failed(std::generic_category().message(error), lost);
        if (!gone) last_error = error;
        gone = gone || is_gone(error);
        queue.done(message.size());
      }
    }
  }
};

ConsoleWriter::ConsoleWriter(int fd, std::function<void(std::string, std::uint64_t)> failed)
    : state_{std::make_shared<State>()} {
  state_->fd.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  state_->terminal = state_->fd && ::isatty(state_->fd.get()) == 1;
  state_->failed = std::move(failed);
}

ConsoleWriter::~ConsoleWriter() {
  state_->queue.close();
  if (!thread_.joinable()) return;
  if (state_->queue.bytes() == 0)
    thread_.join();
  else
    thread_.detach();
}

void ConsoleWriter::write(std::string bytes) {
  const std::size_t size = bytes.size();
  if (size == 0) return;
  // Most jobs write to one of the two only.
  if (!thread_.joinable()) thread_ = start_writer_thread([state = state_] { state->run(); });
  state_->queue.put(std::move(bytes), size);
}
std::size_t ConsoleWriter::queued_bytes() const { return state_->queue.bytes(); }
void ConsoleWriter::when_at_most(std::size_t level, std::function<void()> notice) {
  state_->queue.when_at_most(level, std::move(notice));
}
std::uint64_t ConsoleWriter::bytes_lost() const { return state_->lost; }
bool ConsoleWriter::is_terminal() const { return state_->terminal; }

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace torchup
