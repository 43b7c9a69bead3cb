#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/core/link/messages.hpp"

namespace torchup {

/// Name of this machine, as it calls itself.
[[nodiscard]] std::string own_host_name();

/// Numeric addresses of this machine's interfaces that are up, without loopback and link-local ones; IPv4 first.
[[nodiscard]] std::vector<std::string> own_addresses();

/// Whether that numeric address, with a zone or without, is loopback, or an interface of this machine has it.
[[nodiscard]] bool is_of_this_machine(std::string_view address);

/// Fills what a Join leaves to the link: the node's id, which `incarnation` tells from its earlier ones, its host and
/// its addresses.
[[nodiscard]] Join completed(Join join, int incarnation);

/// The address of ours that packets to `host` carry, a name or an address; empty where no route leads there. A look-up
/// of a name blocks. Sends nothing.
[[nodiscard]] std::string address_towards(const std::string& host);

/// The address by which those can reach us that reach `host`: as address_towards, but where that name means 127.0.1.1
/// here the first of own_addresses.
[[nodiscard]] std::string address_for_others(const std::string& host);

/// The interface whose address packets to the numeric address `destination` carry; empty where no route leads there.
/// Sends nothing.
[[nodiscard]] std::string interface_towards(const std::string& destination);

}  // namespace torchup
