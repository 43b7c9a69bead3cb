#include "rendezvous/net/store/blocking_connect.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>

#include "rendezvous/net/io/address.hpp"
#include "rendezvous/net/io/silence_limit.hpp"

namespace torchup {
namespace {

using Clock = std::chrono::steady_clock;
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// Why one round over all addresses failed.
struct Failure {
  int code = ETIMEDOUT;
  bool may_pass = false;
  std::string text;
};

int milliseconds_until(TimePoint deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000));
}

/// Until `waiting` is ready, false: `deadline` has passed, or `cancel` is readable.
bool wait_for(pollfd waiting, TimePoint deadline, int cancel) {
  std::array<pollfd, 2> both{{waiting, {cancel, POLLIN, 0}}};
  int ready = 0;
  do ready = ::poll(both.data(), both.size(), milliseconds_until(deadline));
  while (ready < 0 && errno == EINTR);
  return both[0].revents != 0;
}

bool is_readable(int descriptor) { return wait_for({descriptor, POLLIN, 0}, Clock::now(), -1); }

/// 0 or the error.
int connect_to(int socket, const addrinfo& address, TimePoint deadline, int cancel) {
  if (::connect(socket, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for({socket, POLLOUT, 0}, deadline, cancel)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

/// Whether trying again may help: the server comes, or connections that have ended give their local ports back.
bool passes(int error) {
  return error == ECONNREFUSED || error == ECONNRESET || error == ETIMEDOUT || error == EADDRNOTAVAIL;
}

std::string text_of(const addrinfo& address) {
  sockaddr_storage storage{};
  std::memcpy(&storage, address.ai_addr, address.ai_addrlen);
  return to_text(storage);
}

UniqueFd connect_once(const std::string& host, Port port, TimePoint deadline, int cancel, Failure& failure) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  failure = {};
  if (const int code = getaddrinfo(host.c_str(), std::to_string(port.value()).c_str(), &hints, &found)) {
    failure = {ENOENT, true, "its addresses cannot be found (" + std::string{gai_strerror(code)} + ")"};
    return {};
  }
  const Addresses addresses{found, &freeaddrinfo};
  for (const addrinfo* address = found; address; address = address->ai_next) {
    UniqueFd socket{::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address->ai_protocol)};
    failure.code = socket ? connect_to(socket.get(), *address, deadline, cancel) : errno;
    if (failure.code == 0) {
      const int on = 1;
      ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      limit_silence(socket.get(), store_silence_max);
      return socket;
    }
    failure.may_pass = failure.may_pass || passes(failure.code);
    failure.text += (failure.text.empty() ? "" : "; ") + text_of(*address) + ": " + std::strerror(failure.code);
  }
  return {};
}

}  // namespace

bool listens(const std::string& host, Port port, TimePoint deadline) {
  Failure failure;
  return static_cast<bool>(connect_once(host, port, deadline, -1, failure));
}

Result<UniqueFd> blocking_connect(const std::string& host, Port port, TimePoint deadline, int cancel) {
  // Jitter keeps ten thousand clients of a server that is not there yet from coming at one instant.
  thread_local std::minstd_rand chance{std::random_device{}()};
  constexpr std::chrono::duration<double> first_pause{0.02}, longest_pause{2};
  const auto begin = Clock::now();
  for (auto pause = first_pause;; pause = std::min(1.5 * pause, longest_pause)) {
    Failure failure;
    if (UniqueFd socket = connect_once(host, port, deadline, cancel, failure)) return socket;
    if (is_readable(cancel)) return system_error(ECANCELED, "connecting to the store");
    const auto now = Clock::now();
    if (!failure.may_pass || now >= deadline) {
      const auto tried = std::chrono::duration_cast<std::chrono::milliseconds>(now - begin).count();
      return system_error(
          failure.may_pass ? ETIMEDOUT : failure.code,
          fmt::format("no connection to ({}, {}) in {} ms: {}", host, port.value(), tried, failure.text));
    }
    const auto jittered =
        std::chrono::duration_cast<Duration>(pause * std::uniform_real_distribution<>{0.5, 1.5}(chance));
    wait_for({cancel, POLLIN, 0}, std::min(now + jittered, deadline), -1);
  }
}

}  // namespace torchup
