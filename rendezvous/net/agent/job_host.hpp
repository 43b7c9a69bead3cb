#pragma once

#include <boost/asio/io_context.hpp>
#include <optional>
#include <string>
#include <utility>

#include "rendezvous/net/agent/attach.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/daemon/common_port.hpp"
#include "rendezvous/net/daemon/coordinator_ops.hpp"

namespace torchup {

/// The coordinator of a job in this process, with the port by which the other nodes reach it.
struct JobHost {
  JobHost(boost::asio::io_context& loop, const AttachSettings& settings)
      : coordinator{loop,
                    [log = settings.log](LogLine line) {
                      line.job.clear();  // there is one only
                      if (log) log(std::move(line));
                    }},
        onlookers{loop, coordinator,
                  CoordinatorOpsOptions{.token = settings.token,
                                        .read_token = settings.read_token,
                                        .host_names = settings.host_names,
                                        .page_job = settings.run_id.value(),
                                        .pid = settings.pid,
                                        .job_name = settings.job_name,
                                        .events = {.events_max = agent_events_max},
                                        .turns = settings.turns}} {}

  [[nodiscard]] Result<Port> listen(boost::asio::io_context& loop, const std::string& bind, Port number,
                                    const AttachSettings& settings) {
    port.emplace(loop, coordinator, onlookers,
                 CommonPortOptions{.bind = bind,
                                   .port = number,
                                   .token = settings.token,
                                   .allowed = settings.allowed,
                                   .embedded = !settings.etcd,
                                   .only_job = settings.further_ports.empty() && !settings.etcd ? "" : settings.run_id.value(),
                                   .admits_torchrun = !settings.etcd,
                                   .log = settings.log});
    return port->listen();
  }

  Coordinator coordinator;
  CoordinatorOps onlookers;
  std::optional<CommonPort> port;
};

}  // namespace torchup
