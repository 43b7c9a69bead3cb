#include "launcher/core/fan_out/host_address.hpp"

#include <algorithm>

#include "launcher/core/fan_out/remote_command.hpp"
#include "launcher/core/text/text.hpp"
#include "rendezvous/core/text/endpoint.hpp"

namespace torchup {

std::string_view reached_by_ssh(std::string_view connection) {
  const auto words = split(connection, ' ');
  return words.size() > 2 ? words[2] : std::string_view{};
}

bool leads_from_others(std::string_view address) {
  return !address.empty() && !is_loopback(address) && !address.starts_with("fe80:");
}

std::vector<std::string> addresses_for_others(std::string_view reached, std::vector<std::string> interfaces) {
  if (reached.empty()) return interfaces;
  std::erase(interfaces, reached);
  interfaces.insert(leads_from_others(reached) ? interfaces.begin() : interfaces.end(), std::string{reached});
  return interfaces;
}

std::string other_host(const std::vector<Host>& hosts, std::string_view own_name) {
  const auto other =
      std::ranges::find_if(hosts, [own_name](const Host& host) { return !is_this_host(host, own_name); });
  if (other == hosts.end()) return "";
  return other->address.empty() ? std::string{name_of_host(other->name)} : other->address;
}

}  // namespace torchup
