#include "rendezvous/net/daemon/common_port.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/daemon/coordinator_ops.hpp"
#include "rendezvous/net/io/listen.hpp"
#include "rendezvous/net/ops/tls_bridge.hpp"

namespace torchup {

namespace {

/// A quarter of the descriptors, and of few clients no more than there may be of them.
std::size_t strangers_max(const ConnectionLimits& limits) {
  const std::size_t descriptors = descriptors_for_peers();
  return std::max<std::size_t>(1, std::min({Strangers::limit, descriptors / 4, limits.connections_max / 4 * 3}));
}

}  // namespace

CommonPort::CommonPort(boost::asio::io_context& loop, Coordinator& coordinator, CoordinatorOps& onlookers,
                       CommonPortOptions options)
    : loop_{loop}, options_{std::move(options)}, coordinator_{coordinator}, admission_{.token = !options_.token.empty(),
                                                                                       .allowed = options_.allowed},
      strangers_{std::make_shared<StrangerList>(strangers_max(options_.connections))}, agents_{loop, coordinator,
                                                                                               agents_options()},
      http_{onlookers.http()}, door_{std::make_shared<HttpDoor>()}, server_{loop, server_options()} {
  door_->access = onlookers.access();
  door_->strangers = strangers_;
  door_->access.https = !options_.tls_cert.empty();
  onlookers.set_port([this] { return PortNumbers{.store = server_.status(), .agents = agents_.count()}; });
}

AgentSessionsOptions CommonPort::agents_options() {
  return {.token = options_.token,
          .tls = [this] { return tls_ ? tls_->context() : nullptr; },
          .https = [this](UniqueFd socket, std::unique_ptr<TlsStream> tls,
                          std::string first) { serve_https(std::move(socket), std::move(tls), std::move(first)); },
          .embedded = options_.embedded,
          .only_job = options_.only_job,
          .strangers = strangers_,
          .admits = admission_.of_agents(),
          .log = options_.log};
}

StoreServerOptions CommonPort::server_options() {
  StoreServerOptions server;
  server.bind = options_.bind;
  server.port = options_.port;
  server.limits = options_.store;
  server.connections = options_.connections;
  server.admits = admission_.of_store_clients(coordinator_);
  server.log = options_.log;
  server.strangers = strangers_;
  server.gives_descriptor = [this] { return agents_.drop_newcomer("this process has no descriptor left"); };
  server.busy_text = [](unsigned char first_byte) -> std::string {
    if (begins_agent(first_byte)) return AgentSessions::busy_text();
    return begins_http(first_byte) ? http_busy_text() : "";
  };
  server.other_language = [this](unsigned char first_byte, UniqueFd& socket) { return serve(first_byte, socket); };
  return server;
}

bool CommonPort::serve(unsigned char first_byte, UniqueFd& socket) {
  if (begins_agent(first_byte)) {
    agents_.serve(std::move(socket));
  } else if (begins_http(first_byte)) {
    http_.serve(std::move(socket), door_);
  } else {
    return false;
  }
  return true;
}

void CommonPort::serve_https(UniqueFd socket, std::unique_ptr<TlsStream> tls, std::string first) {
  auto peer = peer_at(socket.get());
  if (!peer) return;
  peer->encrypted = true;
  auto bridged = bridge_tls(loop_, std::move(socket), std::move(tls), std::move(first));
  if (bridged) http_.serve(*std::move(bridged), door_, *std::move(peer));
}

Result<Port> CommonPort::listen() {
  if (admission_.token || !options_.tls_cert.empty()) {
    auto files = TlsFiles::open({options_.token, options_.tls_cert, options_.tls_key}, options_.log);
    if (!files) return files.error();
    tls_ = *std::move(files);
  }
  auto port = server_.listen();
  if (!port) return port;
  if (admission_.token) {
    refusal_.emplace(server_);
  } else if (options_.admits_torchrun) {
    coordinator_.admit_torchrun(server_, {.bind = options_.bind,
                                          .admits = admission_.of_store_clients(coordinator_),
                                          .common_place = options_.torchrun_store_here});
  }
  return port;
}

}  // namespace torchup
