#include "launcher/os/rehearsal/quiet_port.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdio>

#include "launcher/os/io/read_text.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

constexpr int tries_max = 1000;
constexpr int least_port = 10'000;

/// The first one that the kernel may give to a connection.
int first_dynamic_port() {
  int first = 32768;
  std::sscanf(read_text("/proc/sys/net/ipv4/ip_local_port_range").c_str(), "%d", &first);
  return first;
}

}  // namespace

Result<Port> quiet_port() {
  const int first_dynamic = first_dynamic_port();
  const bool outside = first_dynamic > least_port + tries_max;
  for (int i = 0; i < tries_max; ++i) {
    unsigned chance = 0;
    if (::getrandom(&chance, sizeof chance, 0) != sizeof chance) return system_error("no random bytes");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const unsigned room = outside ? static_cast<unsigned>(first_dynamic - least_port) : 1;
    address.sin_port = htons(static_cast<std::uint16_t>(outside ? least_port + static_cast<int>(chance % room) : 0));
    const UniqueFd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (!socket) return system_error("no socket");
    socklen_t length = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket.get(), any, length) != 0) continue;
    if (::getsockname(socket.get(), any, &length) != 0) return system_error("no port");
    return Port{ntohs(address.sin_port)};
  }
  return fail(errc::refused,
              fmt::format("--rehearse-nodes: {} ports of 127.0.0.1 were tried, and none is free", tries_max));
}

}  // namespace torchup
