#include "rendezvous/net/daemon/common_port.hpp"

#include <utility>

#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/daemon/coordinator_ops.hpp"

namespace torchup {

CommonPort::CommonPort(boost::asio::io_context& loop, Coordinator& coordinator, CoordinatorOps& onlookers,
                       CommonPortOptions options)
    : options_{std::move(options)}, coordinator_{coordinator},
      admission_{.token = !options_.token.empty(), .allowed = options_.allowed}, agents_{loop,
                                                                                         coordinator,
                                                                                         {.token = options_.token,
                                                                                          .embedded = options_.embedded,
                                                                                          .only_job = options_.only_job,
                                                                                          .admits =
                                                                                              admission_.of_agents(),
                                                                                          .log = options_.log}},
      http_{onlookers.http()}, door_{std::make_shared<HttpDoor>()}, server_{loop, server_options()} {
  door_->access = onlookers.access();
  onlookers.set_port([this] { return PortNumbers{.store = server_.status(), .agents = agents_.count()}; });
}

StoreServerOptions CommonPort::server_options() {
  StoreServerOptions server;
  server.bind = options_.bind;
  server.port = options_.port;
  server.limits = options_.store;
  server.connections = options_.connections;
  server.admits = admission_.of_store_clients(coordinator_);
  server.log = options_.log;
  server.gives_descriptor = [this](std::optional<TimePoint> silent_since) {
    return agents_.drop_newcomer(silent_since, "this process has no descriptor left");
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

Result<Port> CommonPort::listen() {
  auto port = server_.listen();
  if (!port) return port;
  if (admission_.token) {
    refusal_.emplace(server_);
  } else {
    coordinator_.admit_torchrun(server_, {.bind = options_.bind,
                                          .admits = admission_.of_store_clients(coordinator_),
                                          .common_place = options_.torchrun_store_here});
  }
  return port;
}

}  // namespace torchup
