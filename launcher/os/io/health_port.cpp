#include "launcher/os/io/health_port.hpp"

#include <boost/asio/io_context.hpp>
#include <utility>

#include "rendezvous/net/io/listen.hpp"
#include "rendezvous/net/ops/http_port.hpp"

namespace torchup {
namespace {

constexpr auto silent_peer_max = std::chrono::seconds{10};

std::shared_ptr<HttpDoor> own_door() {
  auto door = std::make_shared<HttpDoor>();
  door->access.host_names = own_names();
  return door;
}

OpsAnswer probed(const std::string& word) {
  return {.status = word == "ok" ? 200 : 503, .content_type = text_content, .body = word + "\n"};
}

OpsAnswer answer(const HealthPages& pages, const OpsCall& call) {
  switch (call.route) {
    case OpsRoute::healthz:
      return probed("ok");
    case OpsRoute::readyz:
      return probed(pages.readiness());
    case OpsRoute::page:
      if (call.caller.right == Right::none) return answer_of({403, "forbidden", "Only this machine is told more", ""});
      return {.body = pages.status()};
    default:
      return answer_of({404, "no_such_route", "Here are /healthz, /readyz and /", ""});
  }
}

}  // namespace

class HealthPort::Impl {
 public:
  Impl(boost::asio::io_context& loop, Listeners listeners, HealthPages pages)
      : pages_{std::move(pages)}, port_{listeners.port}, server_{loop,
                                                                 [this](const OpsCall& call, HttpServer::Reply reply) {
                                                                   reply(answer(pages_, call));
                                                                 }},
        door_{loop, server_, std::move(listeners.sockets), own_door()} {}

  [[nodiscard]] Port port() const { return port_; }

 private:
  HealthPages pages_;
  Port port_;
  HttpServer server_;
  HttpPort door_;
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
