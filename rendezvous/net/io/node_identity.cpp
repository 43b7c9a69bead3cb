#include "rendezvous/net/io/node_identity.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <random>

#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

/// The numeric text of an interface's address; empty for one that other machines cannot use.
std::string usable_address(const ifaddrs& entry) {
  if (!entry.ifa_addr || (entry.ifa_flags & IFF_UP) == 0 || (entry.ifa_flags & IFF_LOOPBACK) != 0) return {};
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (entry.ifa_addr->sa_family == AF_INET) {
    const auto& address = *std::bit_cast<const sockaddr_in*>(entry.ifa_addr);
    return inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
  }
  if (entry.ifa_addr->sa_family == AF_INET6) {
    const auto& address = *std::bit_cast<const sockaddr_in6*>(entry.ifa_addr);
    if (IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr)) return {};
    return inet_ntop(AF_INET6, &address.sin6_addr, text.data(), text.size());
  }
  return {};
}

/// The address of ours that packets to `host` carry.
std::optional<sockaddr_storage> source_towards(const std::string& host, int flags) {
  addrinfo wanted{};
  wanted.ai_flags = flags | AI_NUMERICSERV;
  wanted.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &wanted, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> address{found, &freeaddrinfo};
  const UniqueFd socket{::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  sockaddr_storage source{};
  socklen_t size = sizeof source;
  // Connecting a datagram socket only asks for the route.
  if (::connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&source), &size) != 0) {
    return {};
  }
  return source;
}

/// Containers may share their host's name, and each begins to count its processes at 1.
std::string own_id(const std::string& host) {
  static const unsigned chance = std::random_device{}();
  return fmt::format("{}.{:08x}_{}", host, chance, getpid());
}

}  // namespace

std::string own_host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? name.data() : "localhost";
}

std::vector<std::string> own_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner{list, &freeifaddrs};
  std::vector<std::string> version4, version6;
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    std::string address = usable_address(*entry);
    if (address.empty()) continue;
    (entry->ifa_addr->sa_family == AF_INET ? version4 : version6).push_back(std::move(address));
  }
  version4.insert(version4.end(), version6.begin(), version6.end());
  return version4;
}

std::string address_towards(const std::string& host) {
  const auto source = source_towards(host, 0);
  if (!source) return {};
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* address = source->ss_family == AF_INET
                            ? static_cast<const void*>(&std::bit_cast<const sockaddr_in*>(&*source)->sin_addr)
                            : &std::bit_cast<const sockaddr_in6*>(&*source)->sin6_addr;
  return inet_ntop(source->ss_family, address, text.data(), text.size());
}

std::string interface_towards(const std::string& destination) {
  const auto found = source_towards(destination, AI_NUMERICHOST);
  if (!found) return {};
  const sockaddr_storage& source = *found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner{list, &freeifaddrs};
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr || entry->ifa_addr->sa_family != source.ss_family) continue;
    const bool version4 = source.ss_family == AF_INET;
    const void* own = version4 ? static_cast<const void*>(&std::bit_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr)
                               : &std::bit_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
    const void* used = version4 ? static_cast<const void*>(&std::bit_cast<const sockaddr_in*>(&source)->sin_addr)
                                : &std::bit_cast<const sockaddr_in6*>(&source)->sin6_addr;
    if (std::memcmp(own, used, version4 ? sizeof(in_addr) : sizeof(in6_addr)) == 0) return entry->ifa_name;
  }
  return {};
}

Join completed(Join join, int incarnation) {
  if (join.host.empty()) join.host = own_host_name();
  const std::string id = join.node.value().empty() ? own_id(join.host) : join.node.value();
  join.node = NodeId{fmt::format("{}_{}", id, incarnation)};
  if (join.addresses.empty()) join.addresses = own_addresses();
  return join;
}

}  // namespace torchup
