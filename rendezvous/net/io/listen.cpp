#include "rendezvous/net/io/listen.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "rendezvous/net/io/address.hpp"
#include "rendezvous/net/io/silence_limit.hpp"

namespace torchup {
namespace {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  [[nodiscard]] sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
  void set_port(Port port) {
    // The port stands at the same place in both families.
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port.value());
  }
};

Result<Address> numeric_address(std::string_view text) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(std::string{text}.c_str(), nullptr, &hints, &found) != 0 || !found)
    return fail(errc::bad_value,
                "cannot listen on \"" + std::string{text} +
                    "\": not a numeric address; give one of this machine's addresses, \"::\" for all of "
                    "them, or \"localhost\"");
  Address address;
  address.size = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

Result<Address> name_of(int socket) {
  Address address;
  address.size = sizeof address.storage;
  if (::getsockname(socket, address.raw(), &address.size) != 0) return system_error(errno, "listening socket");
  return address;
}

Port port_of(const Address& address) {
  return Port{ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port)};
}

void set_option(int socket, int level, int option, int value) {
  ::setsockopt(socket, level, option, &value, sizeof value);
}

void set_inherited_options(int socket, Duration silent_peer_max) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  limit_silence(socket, silent_peer_max);
}

Result<UniqueFd> open_listener(Address address, Port port, Duration silent_peer_max) {
  address.set_port(port);
  UniqueFd socket{::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP)};
  const auto failed = [&] { return system_error(errno, "cannot listen on " + to_text(address.storage)); };
  if (!socket) return failed();
  set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr) ? 0 : 1);
  }
  set_inherited_options(socket.get(), silent_peer_max);
  if (::bind(socket.get(), address.raw(), address.size) != 0) return failed();
  // The kernel cuts the backlog to net.core.somaxconn.
  if (::listen(socket.get(), 1 << 16) != 0) return failed();
  return socket;
}

Result<Listeners> listen_one(const Address& address, Port port, Duration silent_peer_max) {
  auto socket = open_listener(address, port, silent_peer_max);
  if (!socket) return socket.error();
  auto name = name_of(socket->get());
  if (!name) return name.error();
  Listeners listeners;
  listeners.port = port_of(*name);
  listeners.address = to_text(name->storage);
  listeners.sockets.push_back(std::move(*socket));
  return listeners;
}

bool no_such_family(const Error& error) {
  return error.code.value() == EAFNOSUPPORT || error.code.value() == EADDRNOTAVAIL;
}

/// 127.0.0.1 and ::1 on one port. When the system chooses, the port that it gave to one may be taken on the other.
Result<Listeners> listen_on_loopback(Port port, Duration silent_peer_max) {
  const Address v4 = *numeric_address("127.0.0.1"), v6 = *numeric_address("::1");
  for (int attempt = 1;; ++attempt) {
    auto listeners = listen_one(v4, port, silent_peer_max);
    if (!listeners) return listeners.error();
    auto second = open_listener(v6, listeners->port, silent_peer_max);
    if (second) listeners->sockets.push_back(std::move(*second));
    if (second || no_such_family(second.error())) return std::move(*listeners);
    constexpr int attempts_max = 20;
    if (port.value() != 0 || attempt == attempts_max) return second.error();
  }
}

}  // namespace

Result<Listeners> listen_on(std::string_view bind, Port port, Duration silent_peer_max) {
  if (bind == "localhost") return listen_on_loopback(port, silent_peer_max);
  const bool every = bind.empty() || bind == "::" || bind == "*";
  const auto address = numeric_address(every ? "::" : bind);
  if (!address) return address.error();
  auto listeners = listen_one(*address, port, silent_peer_max);
  if (!listeners && every && no_such_family(listeners.error()))
    return listen_one(*numeric_address("0.0.0.0"), port, silent_peer_max);
  return listeners;
}

Result<Listeners> listen_with(UniqueFd listener, Port port, Duration silent_peer_max) {
  const std::string what = fmt::format("listening socket {}", listener.get());
  int listening = 0;
  socklen_t size = sizeof listening;
  if (::getsockopt(listener.get(), SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0) return system_error(errno, what);
  if (!listening) return fail(errc::bad_value, what + " does not listen");
  const auto name = name_of(listener.get());
  if (!name) return name.error();
  if (port.value() != 0 && port != port_of(*name))
    return fail(errc::bad_value,
                fmt::format("{} is bound to port {}, not to {}", what, port_of(*name).value(), port.value()));
  ::fcntl(listener.get(), F_SETFL, ::fcntl(listener.get(), F_GETFL) | O_NONBLOCK);
  ::fcntl(listener.get(), F_SETFD, FD_CLOEXEC);
  set_inherited_options(listener.get(), silent_peer_max);
  Listeners listeners;
  listeners.port = port_of(*name);
  listeners.address = to_text(name->storage);
  listeners.sockets.push_back(std::move(listener));
  return listeners;
}

std::size_t descriptors_for_peers() {
  constexpr std::size_t spare_max = 64;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur - std::min<std::size_t>(spare_max, limit.rlim_cur / 8);
}

}  // namespace torchup
