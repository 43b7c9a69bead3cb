#pragma once

#include <sys/stat.h>

#include <string>

#include "rendezvous/base/result.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// Where a user's processes have their control sockets: $TORCHUP_RUNTIME_DIR, else /tmp/torchup-<uid>.
[[nodiscard]] std::string runtime_directory();

/// Why strangers could put a socket into the folder with this status, or use what is there: it is no folder, not that
/// user's, or has one of the `forbidden` bits of the mode. Empty: they cannot.
[[nodiscard]] std::string why_not_private(const struct stat& status, uid_t owner, mode_t forbidden = 077);

/// A unix socket that listens in a directory of the user's own, and its file, which goes with it.
///
/// Its name shows in the directory only when it can be connected to: so a `.sock` that refuses is left over.
class ControlSocket {
 public:
  /// Makes the directory where there is none; file system calls, which block. `pid`: of the process that people see,
  /// by which the file is named: "<pid>-<8 hexadecimal digits>.sock".
  ///
  /// Errors, which all name the directory: errc::refused when it is no directory, is another user's, or somebody else
  /// may use it, too; errc::limit_exceeded when the path is longer than a socket's may be; the system's.
  [[nodiscard]] static Result<ControlSocket> make(const std::string& directory, long pid);
  ControlSocket(ControlSocket&& other) noexcept;
  ControlSocket& operator=(ControlSocket&& other) noexcept;
  ~ControlSocket();

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Hands over the socket: non-blocking, close-on-exec.
  [[nodiscard]] UniqueFd take() { return std::move(socket_); }

 private:
  ControlSocket(UniqueFd socket, std::string path) : socket_{std::move(socket)}, path_{std::move(path)} {}

  UniqueFd socket_;
  std::string path_;  ///< empty: it was handed on
};

}  // namespace torchup
