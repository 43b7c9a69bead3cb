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
#include <memory>
#include <optional>
#include <random>

#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/core/text/source_list.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

/// The text of an IPv4 or IPv6 address; empty for everything else.
std::string numeric(const sockaddr* address) {
  if (!address || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return {};
  const void* const bytes = address->sa_family == AF_INET
                                ? static_cast<const void*>(&std::bit_cast<const sockaddr_in*>(address)->sin_addr)
                                : &std::bit_cast<const sockaddr_in6*>(address)->sin6_addr;
  std::array<char, INET6_ADDRSTRLEN> text{};
  return inet_ntop(address->sa_family, bytes, text.data(), text.size());
}

/// The numeric text of an interface's address; empty for one that other machines cannot use.
std::string usable_address(const ifaddrs& entry) {
  if (!entry.ifa_addr || (entry.ifa_flags & IFF_UP) == 0 || (entry.ifa_flags & IFF_LOOPBACK) != 0) return {};
  const auto* const version6 = std::bit_cast<const sockaddr_in6*>(entry.ifa_addr);
  const bool local = entry.ifa_addr->sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&version6->sin6_addr);
  return local ? std::string{} : numeric(entry.ifa_addr);
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

bool is_of_this_machine(std::string_view address) {
  if (is_loopback(address)) return true;
  const auto wanted = read_address(address);
  ifaddrs* list = nullptr;
  if (!wanted || getifaddrs(&list) != 0) return false;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner{list, &freeifaddrs};
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    if (read_address(numeric(entry->ifa_addr)) == wanted) return true;
  }
  return false;
}

std::string address_towards(const std::string& host) {
  const auto source = source_towards(host, 0);
  return source ? numeric(std::bit_cast<const sockaddr*>(&*source)) : std::string{};
}

std::string address_for_others(const std::string& host) {
  std::string address = address_towards(host);
  const bool meant = host == "localhost" || host == address;
  if (address.empty() || (is_loopback(address) && !meant)) {
    if (const auto own = own_addresses(); !own.empty()) return own.front();
  }
  return address;
}

std::string interface_towards(const std::string& destination) {
  const auto source = source_towards(destination, AI_NUMERICHOST);
  ifaddrs* list = nullptr;
  if (!source || getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner{list, &freeifaddrs};
  const std::string used = numeric(std::bit_cast<const sockaddr*>(&*source));
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    if (numeric(entry->ifa_addr) == used) return entry->ifa_name;
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
