#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "launcher/os/output/disk_thread.hpp"
#include "rendezvous/net/ops/control_socket.hpp"
#include "rendezvous/net/ops/http_port.hpp"

namespace torchup {

/// The unix socket by which torchupctl finds a launcher, in the user's runtime directory. Lives on the loop; the file
/// is made on a disk's thread, for the directory may be on a slow one.
class UserSocket {
 public:
  /// `launcher`: the pid that users see. `warn`: there is no socket, and why. The others must outlive it.
  UserSocket(asio::io_context& loop, HttpServer& server, DiskThread& disk, pid_t launcher,
             std::function<void(std::string)> warn);
  UserSocket(const UserSocket&) = delete;
  UserSocket& operator=(const UserSocket&) = delete;

  /// Once. Returns at once.
  void open();
  /// Nobody comes any more, and the file goes.
  void close();

 private:
  Task<> make();

  asio::io_context& loop_;
  HttpServer& server_;
  DiskThread& disk_;
  const pid_t launcher_;
  const std::function<void(std::string)> warn_;
  /// What the disk's thread makes. The process may end before the loop hears of it, and no file stays behind: whoever
  /// comes second, the thread or `close`, ends it.
  struct Made {
    std::timed_mutex making;  ///< held while the file is made
    std::atomic<bool> closed = false;
    std::optional<ControlSocket> socket = {};
  };
  const std::shared_ptr<Made> made_ = std::make_shared<Made>();
  std::optional<HttpPort> port_;
};

}  // namespace torchup
