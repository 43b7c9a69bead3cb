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

/// Ours and theirs, both close-on-exec. They block; the functions below do not wait on them. Errors: the system's.
[[nodiscard]] Result<std::array<UniqueFd, 2>> packet_pair();
/// From now on packets that come to `socket` tell who has sent them. Errors: the system's.
Result<> ask_for_senders(int socket);

/// Does not wait: a full queue is an error. Errors: the system's.
Result<> send_packet(int socket, std::string_view text, std::span<const int> descriptors = {});

struct Packet {
  std::string text;
  pid_t sender = 0;  ///< as the kernel saw it; 0 where nobody has asked for senders
};
/// The next packet; nothing while none is there. Descriptors that come with it are not taken.
/// Errors: the system's; its end is errc::refused.
[[nodiscard]] Result<std::optional<Packet>> receive_packet(int socket);

}  // namespace torchup
