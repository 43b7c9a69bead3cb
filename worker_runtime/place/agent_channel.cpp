#include "worker_runtime/place/agent_channel.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "rendezvous/base/worker_channel.hpp"

namespace torchup {
namespace {

int option_of(int socket, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(socket, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

bool is_our_channel(const WorkerChannelAddress& address) {
  struct stat status {};
  return address.pid == ::getpid() && ::fstat(address.fd, &status) == 0 && S_ISSOCK(status.st_mode) &&
         status.st_ino == address.inode && option_of(address.fd, SO_DOMAIN) == AF_UNIX &&
         option_of(address.fd, SO_TYPE) == SOCK_SEQPACKET;
}

}  // namespace

std::unique_ptr<AgentChannel> AgentChannel::open() {
  const char* const text = std::getenv(worker_channel_variable);
  if (text == nullptr) return nullptr;
  const auto address = parse_worker_channel_address(text);
  ::unsetenv(worker_channel_variable);
  if (!address || !is_our_channel(*address)) return nullptr;
  ::fcntl(address->fd, F_SETFD, FD_CLOEXEC);
  return std::make_unique<AgentChannel>(UniqueFd{address->fd});
}

void AgentChannel::say(const std::string& packet) {
  if (open_) (void)!::send(socket_.get(), packet.data(), packet.size(), MSG_NOSIGNAL);
}

std::optional<std::string> AgentChannel::read() {
  // One byte more than a packet may have: a longer one does not pass for its beginning.
  std::array<char, worker_packet_bytes_max + 1> buffer;
  while (open_) {
    const ssize_t size = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (size > 0) return std::string{buffer.data(), static_cast<std::size_t>(size)};
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) break;
    end();
  }
  return {};
}

void AgentChannel::end() {
  open_ = false;
  ::shutdown(socket_.get(), SHUT_RDWR);  // and not closed: another thread may be about to say something
}

}  // namespace torchup
