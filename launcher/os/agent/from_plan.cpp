#include "launcher/os/agent/from_plan.hpp"

#include <utility>
#include <vector>

#include "launcher/os/agent/worker_group.hpp"
#include "launcher/os/diagnosis/preflight_facts.hpp"
#include "launcher/os/machine/node_facts.hpp"
#include "launcher/os/output/circumstances.hpp"

namespace torchup {
namespace {

/// Whether the rendezvous is at an address that others know. A static one on one node is only the workers' address.
bool meets_elsewhere(const LaunchConfig& config) {
  const RendezvousConfig& meeting = config.rendezvous;
  if (!meeting.endpoint || meeting.endpoint->port == Port{0}) return false;
  return !config.one_node() || meeting.backend == Backend::c10d;
}

}  // namespace

OutputPlan output_plan(const LaunchConfig& config, const std::string& host) {
  return *make_output_plan(config.output, config.local_world_size, config.role, host, config.rendezvous.run_id.value());
}

AgentIdentity agent_identity(const LaunchConfig& config, const std::string& host) {
  const bool compared = !config.one_node() && config.terms.same_world != SameWorld::off;
  if (!compared) return {NodeId{""}, host, {}, {}};
  std::vector<Fact> versions;
  if (config.preflight.level != PreflightLevel::off) {
    versions = version_facts_within(versions_limit, config.preflight.python, config.preflight.gpus_found.driver);
  }
  return {NodeId{""}, host, {}, node_facts(config, own_environment(), std::move(versions))};
}

event::JobStarted job_started(const LaunchConfig& config, pid_t launcher) {
  event::JobStarted started;
  started.run_id = config.rendezvous.run_id.value();
  started.version = TORCHUP_VERSION;
  started.command = config.program.command;
  started.name = config.program.title;
  started.role = config.role;
  started.min_nodes = config.terms.min_nodes;
  started.max_nodes = config.terms.max_nodes;
  started.local_world_size = config.local_world_size;
  started.max_restarts = config.terms.max_restarts;
  started.pid = launcher;
  return started;
}

AttachSettings attach_settings(const LaunchConfig& config) {
  const RendezvousConfig& meeting = config.rendezvous;
  AttachSettings settings;
  settings.run_id = meeting.run_id;
  settings.connection = meeting.connection;
  if (meeting.connection >= 0) settings.endpoint = meeting.endpoint;
  if (meets_elsewhere(config)) {
    settings.endpoint = meeting.endpoint;
    settings.further_ports = config.scheduler.further_ports;
    settings.listener_on = listener_on;
  }
  if (settings.endpoint) settings.endpoints = meeting.endpoints;
  if (meeting.etcd) {
    settings.endpoint.reset();
    AttachEtcd& etcd = settings.etcd.emplace();
    etcd.etcd = {.members = meeting.etcd->members,
                 .user = meeting.etcd->conf.user,
                 .password = meeting.etcd->password,
                 .https = meeting.etcd->conf.protocol == "https",
                 .files = {meeting.etcd->conf.ca_file, meeting.etcd->conf.cert_file, meeting.etcd->conf.key_file}};
    etcd.prefix = meeting.etcd->conf.prefix;
    etcd.port = meeting.etcd->conf.port;
    etcd.lease = config.terms.lease;
  }
  settings.is_host = meeting.is_host;
  settings.local_addr = meeting.local_addr;
  settings.token = meeting.token;
  settings.store_proxy = config.terms.store_proxy;
  settings.allowed = meeting.allowed;
  settings.join_timeout = config.terms.join_timeout;
  if (settings.endpoint && meeting.backend == Backend::static_) {
    settings.is_host = meeting.group_rank == GroupRank{0};
    settings.workers_share_port = true;
  }
  return settings;
}

}  // namespace torchup
