#pragma once

#include <memory>
#include <vector>

#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/ops/http_server.hpp"

namespace torchup {

/// Gives a server whoever comes to sockets that listen: a status port's, a page's, a control socket.
class HttpPort {
 public:
  /// The server must outlive it. `sockets` are non-blocking.
  HttpPort(boost::asio::io_context& loop, HttpServer& server, std::vector<UniqueFd> sockets,
           std::shared_ptr<HttpDoor> door);
  HttpPort(const HttpPort&) = delete;
  HttpPort& operator=(const HttpPort&) = delete;
  ~HttpPort();  ///< nobody is accepted any more; those who have come stay

 private:
  struct Listener;
  void wait_at(Listener& listener);
  void wait_later(Listener& listener);

  HttpServer& server_;
  std::shared_ptr<HttpDoor> door_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::shared_ptr<char> alive_ = std::make_shared<char>();  ///< a handler that is on its way asks whether this is
};

}  // namespace torchup
