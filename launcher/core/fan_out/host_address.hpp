#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/scheduler/hostfile.hpp"

/// By which address the other hosts of a fan-out reach one of them. Pure; what the machine knows of its own is found in
/// launcher/os/fan_out/link_agent.
namespace torchup {

/// The address at which ssh has reached this machine, from SSH_CONNECTION: client, its port, address, port. Empty where
/// it says none.
[[nodiscard]] std::string_view reached_by_ssh(std::string_view connection);

/// Whether a numeric address is this machine's for every other one too: loopback is each one's own, and an address of a
/// link alone needs an interface's name, which each has of its own.
[[nodiscard]] bool leads_from_others(std::string_view address);

/// A host's numeric addresses, best first: that at which it was reached, then those of its `interfaces`; last where it
/// leads nobody else here. `reached` may be empty.
[[nodiscard]] std::vector<std::string> addresses_for_others(std::string_view reached,
                                                            std::vector<std::string> interfaces);

/// The first host that is not this machine, by the address or name at which it is found; empty: all are. `own_name`: as
/// gethostname gives it.
[[nodiscard]] std::string other_host(const std::vector<Host>& hosts, std::string_view own_name);

}  // namespace torchup
