#pragma once

#include <string>

namespace torchup {

/// The address of rank 0's node: `master_addr`, or where that is loopback, which it is on all nodes with --store-proxy,
/// what the launcher says beside it (TORCHUP_MASTER_ADDR).
std::string master_beyond_proxy(const std::string& master_addr);

/// The address of this machine that gloo tells the other ranks; empty: gloo chooses by itself.
///
/// Left to itself gloo takes GLOO_SOCKET_IFNAME, else what the host name stands for, else loopback. The first two are
/// right when they lead to something: so they decide here too. A host name that nothing resolves, or that stands for
/// loopback (Debian's 127.0.1.1), would give an address that no other node can reach; then it is the address from which
/// this machine reaches `master_addr`, rank 0's. Where that is loopback although there are `several_nodes` (rank 0's
/// own name, seen from its own node), or nobody said it, it is the address of the default route.
std::string gloo_address(const std::string& master_addr, bool several_nodes);

/// The address, as numbers, from which this machine sends to `host`; empty when `host` is unknown or has no route. No
/// packet is sent.
std::string address_towards(const std::string& host);

/// Whether the host name stands for an address of this machine that is not loopback.
bool host_name_leads_here(const std::string& host_name);

}  // namespace torchup
