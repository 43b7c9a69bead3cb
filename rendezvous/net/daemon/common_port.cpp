#include "rendezvous/net/daemon/common_port.hpp"

#include <fmt/format.h>

#include <utility>

#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/daemon/status_text.hpp"

namespace torchup {

CommonPort::CommonPort(boost::asio::io_context& loop, Coordinator& coordinator, CommonPortOptions options)
    : options_{std::move(options)}, coordinator_{coordinator},
      admission_{.token = !options_.token.empty(), .allowed = options_.allowed}, agents_{loop,
                                                                                         coordinator,
                                                                                         {.token = options_.token,
                                                                                          .embedded = options_.embedded,
                                                                                          .only_job = options_.only_job,
                                                                                          .admits =
                                                                                              admission_.of_agents(),
                                                                                          .log = options_.log}},
      jobs_{loop, coordinator, source_options()}, ops_{loop, jobs_, EventRings::Limits{}},
      http_{loop, [this](const OpsCall& call, HttpServer::Reply reply) { ops_.perform(call, std::move(reply)); }},
      door_{std::make_shared<HttpDoor>()}, page_{loop, http_, {.access = access()}}, server_{loop, server_options()} {
  door_->access = access();
}

OpsAccess CommonPort::access() const {
  OpsAccess access{
      .control_token = options_.token, .read_token = options_.read_token, .host_names = options_.host_names};
  for (std::string& name : own_names()) access.host_names.push_back(std::move(name));
  return access;
}

void CommonPort::open_page(const HttpServer::Reply& reply) {
  const auto url = page_.open(options_.page_job);
  if (!url) return reply(answer_of({503, "no_port", url.error().message(), ""}));
  OpsAnswer answer;
  answer.body = fmt::format("{{\"url\":\"{}\"}}\n", *url);
  reply(std::move(answer));
}

CoordinatorSourceOptions CommonPort::source_options() {
  CoordinatorSourceOptions source;
  source.pid = options_.pid;
  source.status = [this] { return status_text(server_.status(), coordinator_); };
  source.numbers = [this] {
    return CoordinatorNumbers{.store = server_.status(),
                              .turns = options_.turns ? *options_.turns : TurnHistogram{},
                              .agents = agents_.count(),
                              .http_requests = http_.answers(),
                              .event_readers = ops_.feed().readers(),
                              .events_lost = ops_.feed().lost()};
  };
  source.others = [this](const OpsCall& call, HttpServer::Reply reply) {
    if (call.route == OpsRoute::open_page) return open_page(reply);
    if (options_.others) return options_.others(call, std::move(reply));
    reply(answer_of({501, "not_here", "This process cannot do that for the job; ask on the job's own machine", ""}));
  };
  source.forgotten = [this](const std::string& run_id) { ops_.events().forget(run_id); };
  return source;
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
