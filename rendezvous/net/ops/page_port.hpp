#pragma once

#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/base/result.hpp"
#include "rendezvous/net/ops/http_port.hpp"

namespace torchup {

struct PagePortOptions {
  std::string bind = "localhost";  ///< as listen_on takes it
  Port port{0};
  OpsAccess access = {};  ///< beside the page's token
  /// It closes when nobody has asked anything for as long, and nobody follows a stream. Nothing: it stays open.
  std::optional<Duration> idle = std::chrono::minutes{10};
};

/// A port where the page is, for a browser on this machine: whoever has its address, in which there is a token, may
/// steer. The token is fresh for each opening, and told nowhere else.
class PagePort {
 public:
  /// The server must outlive it.
  PagePort(boost::asio::io_context& loop, HttpServer& server, PagePortOptions options);
  PagePort(const PagePort&) = delete;
  PagePort& operator=(const PagePort&) = delete;

  /// "http://127.0.0.1:PORT/jobs/ID#token=…", of all jobs "http://127.0.0.1:PORT/#token=…" where `run_id` is empty.
  /// The same as long as it is open. Errors: those of listen_on.
  [[nodiscard]] Result<std::string> open(const std::string& run_id);
  [[nodiscard]] bool is_open() const { return port_.has_value(); }

 private:
  void wait_idle();

  boost::asio::io_context& loop_;
  HttpServer& server_;
  PagePortOptions options_;
  std::shared_ptr<HttpDoor> door_;
  std::string address_;  ///< "127.0.0.1:41234"
  std::optional<HttpPort> port_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<char> alive_ = std::make_shared<char>();  ///< a handler that is on its way asks whether this is
};

}  // namespace torchup
