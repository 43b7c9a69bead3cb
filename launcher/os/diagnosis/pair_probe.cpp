#include "launcher/os/diagnosis/pair_probe.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace torchup {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t secret_bytes = 32;  // as text
constexpr std::size_t block_bytes = std::size_t{256} << 10;

/// What the end that was dialled says at last.
struct Received {
  std::int64_t bytes = 0;
  std::int64_t nanoseconds = 0;
};

void set_limits(int socket) {
  timeval limit{};
  limit.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(pair_answer_limit).count();
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  const int yes = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

bool send_all(int socket, std::span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

bool receive_all(int socket, std::span<char> bytes) {
  while (!bytes.empty()) {
    const ssize_t received = ::recv(socket, bytes.data(), bytes.size(), 0);
    if (received == 0) errno = ECONNRESET;
    if (received <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(received));
  }
  return true;
}

std::string random_secret() {
  std::array<unsigned char, secret_bytes / 2> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return {};
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

/// The part of one who was dialled.
void answer_pair(int socket, const std::string& secret) {
  set_limits(socket);
  std::array<char, secret_bytes> said{};
  if (!receive_all(socket, said) || std::string_view{said.data(), said.size()} != secret) return;
  char letter = 0;
  for (int i = 0; i < pair_round_trips; ++i) {
    if (!receive_all(socket, {&letter, 1}) || !send_all(socket, {&letter, 1})) return;
  }
  std::vector<char> block(block_bytes);
  Received received;
  const auto begin = Clock::now();
  while (received.bytes <= pair_bytes_max && Clock::now() - begin < pair_answer_limit) {
    const ssize_t size = ::recv(socket, block.data(), block.size(), 0);
    if (size <= 0) break;
    received.bytes += size;
    received.nanoseconds = std::chrono::nanoseconds{Clock::now() - begin}.count();
  }
  static_cast<void>(send_all(socket, {reinterpret_cast<const char*>(&received), sizeof received}));
}

/// Errors: the system's.
Result<UniqueFd> dial(const PairWay& other) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(other.port.value());
  if (::getaddrinfo(other.address.c_str(), port.c_str(), &wanted, &found) != 0) {
    return system_error(EINVAL, other.address);
  }
  UniqueFd socket{::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  int error = socket && ::connect(socket.get(), found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
  ::freeaddrinfo(found);
  if (error == EINPROGRESS) {
    pollfd way{socket.get(), POLLOUT, 0};
    const auto limit_ms = std::chrono::duration_cast<std::chrono::milliseconds>(pair_answer_limit).count();
    error = ::poll(&way, 1, static_cast<int>(limit_ms)) == 1 ? 0 : ETIMEDOUT;
    socklen_t size = sizeof error;
    if (error == 0) ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error != 0) return system_error(error, "connect");
  ::fcntl(socket.get(), F_SETFL, 0);
  set_limits(socket.get());
  return socket;
}

/// As many bytes as go in the time, and what the other end says of them.
bool stream(int socket, Received& received) {
  const std::vector<char> block(block_bytes);
  const auto end = Clock::now() + pair_stream_limit;
  for (std::int64_t sent = 0; sent < pair_bytes_max && Clock::now() < end; sent += block_bytes) {
    if (!send_all(socket, block)) return false;
  }
  ::shutdown(socket, SHUT_WR);
  return receive_all(socket, {reinterpret_cast<char*>(&received), sizeof received});
}

/// False: errno says why.
bool try_way(int socket, const std::string& secret, Received& received) {
  if (!send_all(socket, secret)) return false;
  char letter = 'a';
  for (int i = 0; i < pair_round_trips; ++i) {
    if (!send_all(socket, {&letter, 1}) || !receive_all(socket, {&letter, 1})) return false;
  }
  return stream(socket, received);
}

std::string pair_problem(int error) {
  return std::strerror(error == EAGAIN || error == EWOULDBLOCK ? ETIMEDOUT : error);
}

}  // namespace

Result<std::unique_ptr<PairEnd>> PairEnd::open() {
  UniqueFd socket{::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const bool both = static_cast<bool>(socket);
  if (!both) socket = UniqueFd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};  // a kernel without IPv6
  if (!socket) return system_error("a socket for pairs");
  sockaddr_storage address{};
  socklen_t size = both ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  address.ss_family = both ? AF_INET6 : AF_INET;
  const int no = 0;
  if (both) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), raw, size) != 0 || ::listen(socket.get(), 16) != 0 ||
      ::getsockname(socket.get(), raw, &size) != 0) {
    return system_error("a port for pairs");
  }
  const auto port =
      both ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port : reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  std::string secret = random_secret();
  if (secret.empty()) return system_error("random bytes");
  return std::unique_ptr<PairEnd>{new PairEnd{std::move(socket), Port{ntohs(port)}, std::move(secret)}};
}

PairEnd::PairEnd(UniqueFd listener, Port port, std::string secret)
    : listener_{std::move(listener)}, end_{::eventfd(0, EFD_CLOEXEC)}, port_{port}, secret_{std::move(secret)} {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the loop's thread
  thread_ = std::thread{[this] { serve(); }};
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

PairEnd::~PairEnd() {
  ::eventfd_write(end_.get(), 1);
  thread_.join();
}

void PairEnd::serve() {
  std::array<pollfd, 2> watched{pollfd{listener_.get(), POLLIN, 0}, pollfd{end_.get(), POLLIN, 0}};
  while (::poll(watched.data(), watched.size(), -1) > 0 && watched[1].revents == 0) {
    const UniqueFd peer{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
    if (peer) answer_pair(peer.get(), secret_);
  }
}

PairResult probe_pair(const NodePair& pair, const PairWay& other) {
  PairResult result{.pair = pair};
  const auto socket = dial(other);
  if (!socket) {
    result.problem = socket.error().code.message();
    return result;
  }
  Received received;
  if (!try_way(socket->get(), other.secret, received)) {
    result.problem = pair_problem(errno);
    return result;
  }
  result.connected = true;
  const double took_s = static_cast<double>(std::max<std::int64_t>(received.nanoseconds, 1)) / 1e9;
  const double rate = static_cast<double>(std::clamp<std::int64_t>(received.bytes, 0, 2 * pair_bytes_max)) / took_s;
  result.bytes_per_s = static_cast<std::int64_t>(std::min(rate, 1e15));
  return result;
}

std::string own_address_towards(const std::string& host, Port port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_DGRAM;  // to connect one sends nothing
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port.value()).c_str(), &wanted, &found) != 0) return {};
  const UniqueFd socket{::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  const bool leads = socket && ::connect(socket.get(), found->ai_addr, found->ai_addrlen) == 0;
  ::freeaddrinfo(found);
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  std::array<char, NI_MAXHOST> text{};
  if (!leads || ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) !=
          0) {
    return {};
  }
  return text.data();
}

}  // namespace torchup
