#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/os/worker/child_process.hpp"
#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/io/link_line.hpp"

namespace torchup {

/// The command that leads to one host, and the link over its descriptors. On the loop; keeps itself alive until its
/// process is gone, or `close`.
class HostProcess : public std::enable_shared_from_this<HostProcess> {
 public:
  struct Handlers {
    std::function<void(std::string_view)> before;               ///< LinkLine's
    std::function<void(FarMessage)> message;                    ///< LinkLine's
    std::function<void(LinkChannel, std::string_view)> output;  ///< LinkLine's
    std::function<void(std::string_view)> said;                 ///< by the command itself, on its standard error
    /// Once: the link is broken; with the exit code of the command where that has ended too, as a shell shows it.
    std::function<void(std::string why, std::optional<int> exit_code)> broken;
  };

  HostProcess(asio::io_context& loop, Handlers handlers);

  /// Errors: the system's.
  [[nodiscard]] Result<> start(const std::vector<std::string>& command, std::vector<std::string> environment,
                               const Heritage& heritage);
  /// While it is started and not closed.
  [[nodiscard]] LinkLine& line() { return *line_; }
  /// Ends the link, and the command. Nothing is called any more.
  void close();

 private:
  using Descriptor = asio::posix::stream_descriptor;
  void read_said();
  void wait_for_end();
  void tell_if_broken();

  asio::io_context& loop_;
  Handlers handlers_;
  std::shared_ptr<LinkLine> line_;
  Descriptor said_, ended_;
  asio::steady_timer patience_;
  pid_t pid_ = -1;
  std::optional<int> exit_code_;
  std::optional<std::string> broken_;  ///< the link, and why
  bool waiting_ = false;               ///< for what else there is to know
  bool impatient_ = false;
  bool told_ = false;  ///< or closed
};

}  // namespace torchup
