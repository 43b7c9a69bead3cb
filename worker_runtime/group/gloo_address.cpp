#include "worker_runtime/group/gloo_address.hpp"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string_view>

#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

constexpr const char* some_port = "9";  // of a datagram that is never sent
constexpr const char* any_port = "0";
constexpr const char* far_away = "192.0.2.1";  // RFC 5737: nobody has it, so only the default route leads there

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host, const char* port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (host.empty() || getaddrinfo(host.c_str(), port, &hints, &found) != 0) found = nullptr;
  return {found, &freeaddrinfo};
}

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address == "::1" || address.starts_with("::ffff:127.");
}

std::string numbers_of(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = "";
  return getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

std::string own_host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

std::string address_towards(const std::string& host) {
  const Addresses addresses = resolve(host, some_port);
  for (const addrinfo* target = addresses.get(); target; target = target->ai_next) {
    const UniqueFd probe{socket(target->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
    if (!probe || connect(probe.get(), target->ai_addr, target->ai_addrlen) != 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    if (getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0)
      return numbers_of(reinterpret_cast<const sockaddr*>(&own), length);
  }
  return "";
}

bool host_name_leads_here(const std::string& host_name) {
  const Addresses addresses = resolve(host_name, any_port);
  // As gloo: the first address that this machine has.
  for (const addrinfo* own = addresses.get(); own; own = own->ai_next) {
    const UniqueFd probe{socket(own->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
    if (probe && bind(probe.get(), own->ai_addr, own->ai_addrlen) == 0)
      return !is_loopback(numbers_of(own->ai_addr, own->ai_addrlen));
  }
  return false;
}

std::string master_beyond_proxy(const std::string& master_addr) {
  const char* const told = std::getenv("TORCHUP_MASTER_ADDR");
  return told && *told && (is_loopback(master_addr) || master_addr == "localhost") ? told : master_addr;
}

std::string gloo_address(const std::string& master_addr, bool several_nodes) {
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface && *interface) return "";
  if (host_name_leads_here(own_host_name())) return "";
  const std::string address = address_towards(master_addr);
  if (!several_nodes || !(address.empty() || is_loopback(address))) return address;
  const std::string outwards = address_towards(far_away);
  return outwards.empty() ? address : outwards;
}

}  // namespace torchup
