#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/core/fan_out/fan_out_options.hpp"
#include "launcher/os/output/disk_thread.hpp"
#include "rendezvous/net/io/asio.hpp"

namespace torchup {

/// For one answer of a command.
inline constexpr Duration host_command_limit = std::chrono::seconds{10};

/// Asks again and again which hosts there are (--host-discovery). On the loop; the asking itself has a thread, for a
/// command or a disk may take its time. A list that cannot be had, or names nobody, changes nothing and is told once.
class HostWatch {
 public:
  struct Handlers {
    std::function<void(std::vector<Host>)> listed;  ///< another list than before
    std::function<void(std::string why)> failed;
  };
  HostWatch(asio::io_context& loop, HostDiscovery discovery, Handlers handlers,
            Duration command_limit = host_command_limit);
  void start() { ask(); }
  /// Asks and tells no more, also from within a handler. What it has begun still comes back to it on the loop.
  void stop();

 private:
  void ask();
  void hear(Result<std::vector<Host>> hosts);

  const HostDiscovery discovery_;
  const Handlers handlers_;
  const Duration command_limit_;
  DiskThread thread_;
  Timer timer_;
  std::vector<Host> last_;
  bool failed_ = false;  ///< and told
  bool stopped_ = false;
};

}  // namespace torchup
