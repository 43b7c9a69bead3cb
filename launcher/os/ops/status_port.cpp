#include "launcher/os/ops/status_port.hpp"

#include <utility>

namespace torchup {

void StatusPort::open(boost::asio::io_context& loop, HttpServer& server, const OperationsOptions& doors,
                      OpsAccess access, const RunId& run_id, const DoorWords& words) {
  if (!doors.status_port) return;
  port_.emplace(
      loop, server,
      PagePortOptions{.bind = doors.status_bind, .port = *doors.status_port, .access = std::move(access), .idle = {}});
  const auto url = port_->open(run_id.value());
  if (url) return words.say({LogLevel::info, "the page of this job: " + *url});
  port_.reset();
  words.warn("no --status-port: " + url.error().message());
}

}  // namespace torchup
