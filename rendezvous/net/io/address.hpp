#pragma once

#include <sys/socket.h>

#include <string>

namespace torchup {

/// "10.0.0.1:29500" or "[fd00::1]:29500"; v4-mapped addresses as IPv4. No look-up.
[[nodiscard]] std::string to_text(const sockaddr_storage& address);
/// The same without port: "10.0.0.1", "fd00::1". Empty for a socket of no network.
[[nodiscard]] std::string numeric_host(const sockaddr_storage& address);
/// Who is at the other end; "somebody" when the connection is gone.
[[nodiscard]] std::string peer_text(int socket);
/// The same without port, and empty when the connection is gone.
[[nodiscard]] std::string peer_address(int socket);
/// The numeric address of this machine that a connection uses, without port; empty when it is none.
[[nodiscard]] std::string own_address(int socket);

}  // namespace torchup
