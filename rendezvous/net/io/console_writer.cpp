#include "rendezvous/net/io/console_writer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/io/write_all.hpp"

namespace torchup {
namespace {

bool is_gone(int error) { return error == EPIPE || error == EIO || error == EBADF || error == ENXIO; }

}  // namespace

struct ConsoleWriter::State {
  UniqueFd fd;
  bool terminal = false;
  std::function<void(std::string, std::uint64_t)> failed;
  std::atomic<std::uint64_t> lost = 0;
  // The writer's.
  bool gone = false;
  int last_error = 0;

  void write(std::string_view rest) {
    if (!fd) return;
    const int error = gone ? 0 : write_all(fd.get(), rest);
    lost += rest.size();
    if (error != 0 && error != last_error) failed(std::generic_category().message(error), lost);
    if (!gone) last_error = error;
    gone = gone || is_gone(error);
  }
};

ConsoleWriter::ConsoleWriter(int fd, std::function<void(std::string, std::uint64_t)> failed)
    : state_{std::make_shared<State>()} {
  state_->fd.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  state_->terminal = state_->fd && ::isatty(state_->fd.get()) == 1;
  state_->failed = std::move(failed);
}

void ConsoleWriter::write(std::string bytes) {
  const std::size_t size = bytes.size();
  if (size == 0) return;
  thread_.put([state = state_, bytes = std::move(bytes)] { state->write(bytes); }, size);
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
