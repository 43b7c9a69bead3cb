#include "launcher/os/io/health_port.hpp"

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <utility>

#include "rendezvous/net/daemon/http.hpp"
#include "rendezvous/net/io/listen.hpp"

namespace torchup {
namespace {

constexpr auto silent_peer_max = std::chrono::seconds{10};
/// How long a peer waits where it cannot be accepted: there is no descriptor for it, and it stays there to be accepted.
constexpr auto accept_pause = std::chrono::milliseconds{100};

HttpOptions options_of(HealthPages pages) {
  HttpOptions options;
  options.pages.emplace("/", HttpOptions::Page{"application/json", std::move(pages.status)});
  options.pages.emplace("/healthz", probe_page([] { return "ok"; }));
  options.pages.emplace("/readyz", probe_page(std::move(pages.readiness)));
  return options;
}

}  // namespace

class HealthPort::Impl {
 public:
  Impl(boost::asio::io_context& loop, Listeners listeners, HealthPages pages)
      : http_{loop, options_of(std::move(pages))}, port_{listeners.port} {
    for (UniqueFd& socket : listeners.sockets) doors_.emplace_back(loop, socket.release());
    for (Door& door : doors_) wait_at(door);
  }

  [[nodiscard]] Port port() const { return port_; }

 private:
  using Descriptor = boost::asio::posix::stream_descriptor;

  struct Door {
    Door(boost::asio::io_context& loop, int fd) : socket{loop, fd}, pause{loop} {}
    Descriptor socket;
    boost::asio::steady_timer pause;
  };

  void wait_at(Door& door) {
    door.socket.async_wait(Descriptor::wait_read, [this, &door](boost::system::error_code error) {
      if (error) return;
      UniqueFd peer{::accept4(door.socket.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
      if (!peer) return wait_later(door);
      http_.serve(std::move(peer));
      wait_at(door);
    });
  }

  void wait_later(Door& door) {
    door.pause.expires_after(accept_pause);
    door.pause.async_wait([this, &door](boost::system::error_code error) {
      if (!error) wait_at(door);
    });
  }

  HttpService http_;
  Port port_;
  std::deque<Door> doors_;
};

HealthPort::HealthPort(std::unique_ptr<Impl> impl) : impl_{std::move(impl)} {}
HealthPort::HealthPort(HealthPort&&) noexcept = default;
HealthPort& HealthPort::operator=(HealthPort&&) noexcept = default;
HealthPort::~HealthPort() = default;

Port HealthPort::port() const { return impl_->port(); }

Result<HealthPort> HealthPort::open(boost::asio::io_context& loop, Port port, bool everywhere, HealthPages pages) {
  auto listeners = listen_on(everywhere ? "" : "localhost", port, silent_peer_max);
  if (!listeners) return listeners.error();
  return HealthPort{std::make_unique<Impl>(loop, std::move(*listeners), std::move(pages))};
}

}  // namespace torchup
