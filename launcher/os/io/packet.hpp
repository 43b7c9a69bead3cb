#pragma once

#include <sys/types.h>

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "rendezvous/base/result.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

/// Packets between processes of one machine: a SOCK_SEQPACKET pair, which has no name on disk.
namespace torchup {

/// The text of a packet that we read; a longer one is cut.
inline constexpr std::size_t packet_bytes_max = 4096;
/// Descriptors that one packet carries (SCM_MAX_FD of the kernel).
inline constexpr std::size_t packet_descriptors_max = 253;

/// Ours and theirs. Ours does not block and tells who has sent a packet; theirs blocks. Both are close-on-exec.
/// Errors: the system's.
[[nodiscard]] Result<std::array<UniqueFd, 2>> packet_pair();

/// Does not wait: a full queue is an error. Errors: the system's.
Result<> send_packet(int socket, std::string_view text, std::span<const int> descriptors = {});

struct Packet {
  std::string text;
  pid_t sender = 0;  ///< as the kernel saw it
};
/// The next packet; nothing while none is there. Descriptors that come with it are not taken.
/// Errors: the system's; its end is errc::refused.
[[nodiscard]] Result<std::optional<Packet>> receive_packet(int socket);

}  // namespace torchup
