#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// The kernel's lists of sockets, /proc/PID/net/{tcp,tcp6,udp,udp6,unix}, in which a socket is found by its inode.
namespace torchup {

/// More of a list is not read: some 25,000 sockets.
inline constexpr std::size_t socket_table_bytes_max = std::size_t{4} << 20;

/// Of tcp, tcp6, udp or udp6: the peer as `10.0.0.7:443` or `[fe80::1]:443`; of a socket without a peer its own
/// address, as `0.0.0.0:29500 (its own)`. Nothing when it is not in the list. A machine of the other byte order is none
/// of ours.
[[nodiscard]] std::optional<std::string> internet_peer(std::string_view list, std::uint64_t inode);

/// Of unix: its own path, or `a Unix socket` where it has none: connected ones have none, and the list names no peers.
[[nodiscard]] std::optional<std::string> unix_path(std::string_view list, std::uint64_t inode);

}  // namespace torchup
