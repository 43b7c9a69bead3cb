#include "rendezvous/net/io/address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <optional>

namespace torchup {
namespace {

/// What `get`, getsockname or getpeername, says of a socket; nothing when the connection is gone.
std::optional<sockaddr_storage> name_of(int (*get)(int, sockaddr*, socklen_t*), int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (get(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return std::nullopt;
  return address;
}

}  // namespace

std::string numeric_host(const sockaddr_storage& address) {
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return "";
  std::string text = to_text(address);
  text.erase(std::min(text.rfind(':'), text.size()));
  return text.starts_with('[') ? text.substr(1, text.size() - 2) : text;
}

std::string to_text(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
    ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
    return fmt::format("{}:{}", text, ntohs(v4->sin_port));
  }
  if (address.ss_family != AF_INET6) return "somebody";
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
  const int port = ntohs(v6->sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
    ::inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], text, sizeof text);
    return fmt::format("{}:{}", text, port);
  }
  ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
  return fmt::format("[{}]:{}", text, port);
}

std::string peer_text(int socket) {
  const auto peer = name_of(::getpeername, socket);
  return peer ? to_text(*peer) : "somebody";
}

std::string peer_address(int socket) {
  const auto peer = name_of(::getpeername, socket);
  return peer ? numeric_host(*peer) : "";
}

std::string own_address(int socket) {
  const auto own = name_of(::getsockname, socket);
  return own ? numeric_host(*own) : "";
}

}  // namespace torchup
