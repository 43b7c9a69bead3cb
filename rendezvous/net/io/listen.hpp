#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// Sockets that listen on one port.
struct Listeners {
  std::vector<UniqueFd> sockets;  ///< non-blocking, close-on-exec
  Port port{0};
  std::string address;  ///< for people: "[::]:29500", "127.0.0.1:29500"
};

/// Listens on `bind`: empty or "::" is every address of both families in one socket (IPv4 alone where the machine has
/// no IPv6); "localhost" is 127.0.0.1 and, where there is one, ::1; anything else a numeric address. Names are not
/// looked up.
///
/// What is accepted inherits: no Nagle delay, keep-alive probes and an unacknowledged-data limit that together notice a
/// vanished machine within `silent_peer_max`.
///
/// Errors: the system's, with address and port in the context; errc::bad_value when `bind` is no numeric address.
[[nodiscard]] Result<Listeners> listen_on(std::string_view bind, Port port, Duration silent_peer_max);

/// Takes over a socket that somebody else has bound and set to listen. `port` is its own or 0.
[[nodiscard]] Result<Listeners> listen_with(UniqueFd listener, Port port, Duration silent_peer_max);

/// How many connections this process may hold at once, its other descriptors left aside.
[[nodiscard]] std::size_t descriptors_for_peers();

}  // namespace torchup
