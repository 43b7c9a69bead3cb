#include "launcher/os/diagnosis/pair_probe.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

namespace torchup {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t secret_bytes = 32;  // as text
constexpr std::size_t block_bytes = std::size_t{256} << 10;
constexpr int descriptors_back_ms = 100;

/// What the end that was dialled says at last.
struct Received {
  std::int64_t bytes = 0;
  std::int64_t nanoseconds = 0;
};

/// One connection, until a time and as long as somebody wants it. What returns false leaves the reason in errno.
class PairSocket {
 public:
  PairSocket(UniqueFd socket, TimePoint end, int cancel) : socket_{std::move(socket)}, end_{end}, cancel_{cancel} {
    const int yes = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  }
  explicit operator bool() const { return static_cast<bool>(socket_); }
  [[nodiscard]] int get() const { return socket_.get(); }

  /// Until the socket is ready for `events`.
  [[nodiscard]] bool await(short events) const {
    std::array<pollfd, 2> watched{pollfd{socket_.get(), events, 0}, pollfd{cancel_, POLLIN, 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now());
    if (left.count() <= 0) return fails(ETIMEDOUT);
    const int ready = ::poll(watched.data(), watched.size(), static_cast<int>(left.count()));
    if (ready == 0) return fails(ETIMEDOUT);
    return ready > 0 && watched[1].revents == 0 ? true : fails(ECANCELED);
  }

  [[nodiscard]] bool send_all(std::span<const char> bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(sent));
      } else if (errno != EAGAIN || !await(POLLOUT)) {
        return false;
      }
    }
    return true;
  }

  /// What has come, `bytes` at most; 0: the other end has nothing more to say, below 0: an error.
  [[nodiscard]] ssize_t receive(std::span<char> bytes) const {
    for (;;) {
      const ssize_t received = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (received >= 0 || errno != EAGAIN) return received;
      if (!await(POLLIN)) return -1;
    }
  }

  [[nodiscard]] bool receive_all(std::span<char> bytes) const {
    while (!bytes.empty()) {
      // One that is always ready would never be waited for.
      if (Clock::now() >= end_) return fails(ETIMEDOUT);
      const ssize_t received = receive(bytes);
      if (received == 0) return fails(ECONNRESET);
      if (received < 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(received));
    }
    return true;
  }

  [[nodiscard]] bool is_over() const { return Clock::now() >= end_; }

 private:
  static bool fails(int error) {
    errno = error;
    return false;
  }

  UniqueFd socket_;
  TimePoint end_;
  int cancel_;
};

std::string random_secret() {
  std::array<unsigned char, secret_bytes / 2> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return {};
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

/// The part of one who was dialled, by somebody who has said the secret.
void answer_pair(const PairSocket& socket) {
  char letter = 0;
  for (int i = 0; i < pair_round_trips; ++i) {
    if (!socket.receive_all({&letter, 1}) || !socket.send_all({&letter, 1})) return;
  }
  std::vector<char> block(block_bytes);
  Received received;
  const auto begin = Clock::now();
  while (received.bytes <= pair_bytes_max && !socket.is_over()) {
    const ssize_t size = socket.receive(block);
    if (size < 0) return;
    if (size == 0) break;
    received.bytes += size;
    received.nanoseconds = std::chrono::nanoseconds{Clock::now() - begin}.count();
  }
  static_cast<void>(socket.send_all({reinterpret_cast<const char*>(&received), sizeof received}));
}

/// Those who dial one end, on its thread.
class PairService {
 public:
  PairService(int listener, int end, const std::string& secret) : listener_{listener}, end_{end}, secret_{secret} {}

  void run() {
    for (;;) {
      std::vector<pollfd> watched{pollfd{end_, POLLIN, 0}, pollfd{listener_, POLLIN, 0}};
      for (const Stranger& each : strangers_) watched.push_back({each.socket.get(), POLLIN, 0});
      if (::poll(watched.data(), watched.size(), wait_ms()) < 0 && errno != EINTR) return;
      if (watched[0].revents != 0) return;
      for (std::size_t i = strangers_.size(); i-- > 0;) {
        if (watched[i + 2].revents != 0) hear(i);
      }
      const auto late = [now = Clock::now()](const Stranger& each) { return now >= each.end; };
      std::erase_if(strangers_, late);
      if (watched[1].revents != 0) welcome();
    }
  }

 private:
  struct Stranger {
    UniqueFd socket;
    TimePoint end;
    std::string said = {};
  };

  /// Until the first is late.
  [[nodiscard]] int wait_ms() const {
    if (strangers_.empty()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(strangers_.front().end - Clock::now());
    return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
  }

  void welcome() {
    UniqueFd socket{::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
    if (!socket) {
      pollfd ended{end_, POLLIN, 0};
      if (errno != EAGAIN) ::poll(&ended, 1, descriptors_back_ms);  // none is left: who dials stays in the queue
      return;
    }
    if (strangers_.size() == pair_strangers_max) strangers_.erase(strangers_.begin());
    strangers_.push_back({std::move(socket), Clock::now() + pair_secret_limit});
  }

  void hear(std::size_t index) {
    Stranger& stranger = strangers_[index];
    std::array<char, secret_bytes> part{};
    const ssize_t size = ::recv(stranger.socket.get(), part.data(), secret_bytes - stranger.said.size(), MSG_DONTWAIT);
    if (size < 0 && errno == EAGAIN) return;
    if (size > 0) stranger.said.append(part.data(), static_cast<std::size_t>(size));
    if (size > 0 && stranger.said.size() < secret_bytes) return;
    const PairSocket socket{std::move(stranger.socket), Clock::now() + pair_limit, end_};
    const bool known = stranger.said == secret_;
    strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(index));
    if (!known) return;
    const auto begin = Clock::now();
    answer_pair(socket);
    for (Stranger& each : strangers_) each.end += Clock::now() - begin;  // nobody has listened to them
  }

  int listener_;
  int end_;
  const std::string& secret_;
  std::vector<Stranger> strangers_;
};

/// Errors: the system's.
Result<PairSocket> dial(const PairWay& other, TimePoint end, int cancel) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(other.port.value());
  if (::getaddrinfo(other.address.c_str(), port.c_str(), &wanted, &found) != 0) {
    return system_error(EADDRNOTAVAIL, other.address);
  }
  PairSocket socket{UniqueFd{::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)}, end, cancel};
  int error = socket && ::connect(socket.get(), found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
  ::freeaddrinfo(found);
  if (error == EINPROGRESS) {
    error = socket.await(POLLOUT) ? 0 : errno;
    socklen_t size = sizeof error;
    if (error == 0) ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error != 0) return system_error(error, "connect");
  return socket;
}

/// As many bytes as go in the time, and what both ends make of them: the lower rate counts.
bool stream(const PairSocket& socket, std::int64_t& bytes_per_s) {
  const std::vector<char> block(block_bytes);
  const auto begin = Clock::now();
  std::int64_t sent = 0;
  for (; sent < pair_bytes_max && Clock::now() < begin + pair_stream_limit; sent += block_bytes) {
    if (!socket.send_all(block)) return false;
  }
  ::shutdown(socket.get(), SHUT_WR);
  Received received;
  if (!socket.receive_all({reinterpret_cast<char*>(&received), sizeof received})) return false;
  const auto rate = [](std::int64_t bytes, std::int64_t nanoseconds) {
    return static_cast<double>(std::clamp<std::int64_t>(bytes, 0, 2 * pair_bytes_max)) * 1e9 /
           static_cast<double>(std::max<std::int64_t>(nanoseconds, 1));
  };
  const double own = rate(sent, std::chrono::nanoseconds{Clock::now() - begin}.count());
  bytes_per_s = static_cast<std::int64_t>(std::min(own, rate(received.bytes, received.nanoseconds)));
  return true;
}

/// False: errno says why.
bool try_way(const PairSocket& socket, const std::string& secret, std::int64_t& bytes_per_s) {
  if (!socket.send_all(secret)) return false;
  char letter = 'a';
  for (int i = 0; i < pair_round_trips; ++i) {
    if (!socket.send_all({&letter, 1}) || !socket.receive_all({&letter, 1})) return false;
  }
  return stream(socket, bytes_per_s);
}

PairResult probed(const NodePair& pair, const PairWay& other, const Result<PairSocket>& socket) {
  PairResult result{.pair = pair};
  if (!socket) {
    result.problem = socket.error().code.message();
    return result;
  }
  result.connected = try_way(*socket, other.secret, result.bytes_per_s);
  if (!result.connected) result.problem = std::strerror(errno);
  return result;
}

}  // namespace

Result<std::unique_ptr<PairEnd>> PairEnd::open() {
  UniqueFd socket{::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  const bool both = static_cast<bool>(socket);
  if (!both) socket = UniqueFd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};  // without IPv6
  UniqueFd end{::eventfd(0, EFD_CLOEXEC)};
  if (!socket || !end) return system_error("a socket for pairs");
  sockaddr_storage address{};
  socklen_t size = both ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  address.ss_family = both ? AF_INET6 : AF_INET;
  const int no = 0;
  if (both) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), raw, size) != 0 || ::listen(socket.get(), static_cast<int>(pair_strangers_max)) != 0 ||
      ::getsockname(socket.get(), raw, &size) != 0) {
    return system_error("a port for pairs");
  }
  const auto port =
      both ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port : reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  std::string secret = random_secret();
  if (secret.empty()) return system_error("random bytes");
  try {
    return std::unique_ptr<PairEnd>{
        new PairEnd{std::move(socket), std::move(end), Port{ntohs(port)}, std::move(secret)}};
  } catch (const std::system_error& error) {
    return system_error(error.code().value(), "a thread for pairs");
  }
}

PairEnd::PairEnd(UniqueFd listener, UniqueFd end, Port port, std::string secret)
    : listener_{std::move(listener)}, end_{std::move(end)}, port_{port}, secret_{std::move(secret)} {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the loop's thread
  try {
    thread_ = std::thread{[this] { PairService{listener_.get(), end_.get(), secret_}.run(); }};
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

PairEnd::~PairEnd() {
  ::eventfd_write(end_.get(), 1);
  thread_.join();
}

PairResult probe_pair(const NodePair& pair, const PairWay& other, int cancel) {
  return probed(pair, other, dial(other, Clock::now() + pair_limit, cancel));
}

std::optional<PairResult> probe_again(const NodePair& pair, const PairWay& other, int cancel) {
  const auto socket = dial(other, Clock::now() + pair_limit, cancel);
  if (!socket && socket.error().code == boost::system::errc::connection_refused) return std::nullopt;
  return probed(pair, other, socket);
}

}  // namespace torchup
