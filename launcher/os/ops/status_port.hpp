#pragma once

#include <functional>
#include <optional>
#include <string>

#include "launcher/core/options/operations_options.hpp"
#include "rendezvous/core/text/log_line.hpp"
#include "rendezvous/net/ops/page_port.hpp"

namespace torchup {

/// What is told of a process's doors: a warning that belongs into its record, and a line of its log that does not, for
/// it may have a token in it. The log knows which lines people want, and how (--log-level, --log-format).
struct DoorWords {
  std::function<void(std::string)> warn;
  LogSink say;
};

/// The port of --status-port. Lives on the loop.
class StatusPort {
 public:
  /// Opens it where it was asked for, and says where the job's page is. What cannot be opened is one warning. The
  /// server must outlive it.
  void open(boost::asio::io_context& loop, HttpServer& server, const OperationsOptions& doors, OpsAccess access,
            const RunId& run_id, const DoorWords& words);

 private:
  std::optional<PagePort> port_;
};

}  // namespace torchup
