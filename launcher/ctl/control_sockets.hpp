#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// A launcher's or daemon's control socket in a folder that may be used.
struct SocketFile {
  std::string path = {};
  pid_t pid = 0;                                ///< of the outer process, as the name tells
  std::string name = {};                        ///< in its folder
  std::shared_ptr<const UniqueFd> folder = {};  ///< looked at once: what is there under that path later does not matter
  uid_t owner = 0;                              ///< of the folder
};

struct FoundSockets {
  std::vector<SocketFile> sockets;      ///< by path
  std::vector<std::string> complaints;  ///< folders that are there and may not be used, and why
};

/// Of one folder no more are looked at.
inline constexpr std::size_t sockets_max = 4096;

/// The pid in `<outer pid>-<8 hex>.sock`; nothing for another name.
[[nodiscard]] std::optional<pid_t> pid_in_socket_name(std::string_view name);

/// Where launchers and daemons of this machine have put their sockets: $TORCHUP_RUNTIME_DIR, or else
/// /tmp/torchup-<uid>; and /run/torchupd. `all_users`, for root: /tmp/torchup-* too.
///
/// A folder is used where it is one (no link to one), ours, and nothing in it is for others: else strangers could put a
/// socket there that answers in a launcher's place. For root it may be of the user that it is named after.
[[nodiscard]] FoundSockets find_control_sockets(bool all_users);

/// Connects, without waiting; the socket does not block. One that refuses has nobody behind it any more: it is removed.
///
/// Errors: the system's; errc::refused where what is there is no socket.
[[nodiscard]] Result<UniqueFd> connect_to(const SocketFile& socket);

}  // namespace torchup
