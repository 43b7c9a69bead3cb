#include "rendezvous/net/ops/http_port.hpp"

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

namespace torchup {
namespace {

using Descriptor = boost::asio::posix::stream_descriptor;

/// How long a peer waits where it cannot be accepted: there is no descriptor for it, and it stays there to be accepted.
constexpr auto accept_pause = std::chrono::milliseconds{100};

}  // namespace

struct HttpPort::Listener {
  Listener(boost::asio::io_context& loop, int fd) : socket{loop, fd}, pause{loop} {}
  Descriptor socket;
  boost::asio::steady_timer pause;
};

HttpPort::HttpPort(boost::asio::io_context& loop, HttpServer& server, std::vector<UniqueFd> sockets,
                   std::shared_ptr<HttpDoor> door)
    : server_{server}, door_{std::move(door)} {
  for (UniqueFd& socket : sockets) listeners_.push_back(std::make_unique<Listener>(loop, socket.release()));
  for (const auto& listener : listeners_) wait_at(*listener);
}

HttpPort::~HttpPort() = default;

void HttpPort::wait_at(Listener& listener) {
  listener.socket.async_wait(
      Descriptor::wait_read, [this, &listener, alive = std::weak_ptr{alive_}](boost::system::error_code error) {
        if (error || alive.expired()) return;
        UniqueFd peer{::accept4(listener.socket.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
        if (!peer) return wait_later(listener);
        server_.serve(std::move(peer), door_);
        wait_at(listener);
      });
}

void HttpPort::wait_later(Listener& listener) {
  listener.pause.expires_after(accept_pause);
  listener.pause.async_wait([this, &listener, alive = std::weak_ptr{alive_}](boost::system::error_code error) {
    if (!error && !alive.expired()) wait_at(listener);
  });
}

}  // namespace torchup
