#include "rendezvous/net/daemon/admission.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/io/node_identity.hpp"

namespace torchup {

Admission::Rule Admission::with(Rule is_member) const {
  if (!token && allowed.empty()) return {};
  return [list = allowed, is_member = std::move(is_member)](const std::string& address) {
    return is_loopback(address) || list.contains(address) || is_member(address) || is_of_this_machine(address);
  };
}

Admission::Rule Admission::of_agents() const {
  if (token) return {};  // they prove it
  return with([](const std::string&) { return false; });
}

Admission::Rule Admission::of_store_clients(const Coordinator& coordinator) const {
  return with([&coordinator](const std::string& address) { return coordinator.knows_address(address); });
}

Admission::Rule Admission::of_store_clients(SourceList members) const {
  return with([members = std::move(members)](const std::string& address) { return members.contains(address); });
}

}  // namespace torchup
