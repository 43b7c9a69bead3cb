#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/core/text/log_line.hpp"
#include "rendezvous/core/text/source_list.hpp"
#include "rendezvous/net/coordinator/agent_link.hpp"
#include "rendezvous/net/coordinator/seat_candidate.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

class CoordinatorOps;
class TurnHistogram;

/// What an agent keeps of its own job for those who ask what has happened.
inline constexpr std::size_t agent_events_max = 256;

/// Of a job whose coordinator is any of its agents, as they settle it in etcd (net/coordinator/seat_candidate).
struct AttachEtcd {
  EtcdSettings etcd = {};
  std::string prefix = "/torchup";
  Port port{0};                                ///< of the agent's coordinator; 0: any free one
  Duration lease = std::chrono::seconds{10};   ///< the job's
  /// We have taken the job over: from whom, and how.
  std::function<void(const SeatCandidate::TakenOver&)> took_over = {};
};

/// How an agent finds the coordinator of its job.
struct AttachSettings {
  RunId run_id{""};
  /// Empty: one node only, the coordinator lives in this process and no socket is opened.
  std::optional<Endpoint> endpoint = {};
  /// Where daemons of one etcd are, of which one is active (CoordinatorLinkSettings::endpoints); the first is `endpoint`.
  std::vector<Endpoint> endpoints = {};
  /// Set: there is no endpoint, and this process may become the coordinator.
  std::optional<AttachEtcd> etcd = {};
  /// An open connection to the coordinator, owned from now on (AgentClientSettings::connection); the endpoint is what
  /// people are told of it. -1: there is none.
  int connection = -1;
  /// Of the endpoint's host: where its port is taken, the coordinator listens at the first of these that is free, and
  /// lets no agent of another job in. Only with `is_host` set.
  std::vector<Port> further_ports = {};
  /// Who has a port of this machine, for people; "" or unset: not known. Asked where all of them are taken.
  std::function<std::string(Port)> listener_on = {};
  /// `is_host` of --rdzv-conf. Unset: this machine hosts when the endpoint names it, as torchrun decides.
  std::optional<bool> is_host = {};
  /// --local-addr: what other nodes use to reach this one, whatever the coordinator sees.
  std::string local_addr = {};
  /// Static rendezvous: the workers' store is the endpoint's own. Where we host it, HostStore is answered here, with
  /// that store emptied, and never reaches the agent.
  bool workers_share_port = false;
  /// Workers reach their store by their agents, which torchrun's cannot do: where it meets, LinkLost (68).
  bool store_proxy = false;
  /// Secret that agents and coordinator prove to each other; empty: none.
  std::string token = {};
  /// Where this process hosts the coordinator: networks from which somebody may come without proving the token.
  SourceList allowed = {};
  std::string read_token = {};  ///< likewise, and below: CoordinatorOpsOptions
  std::vector<std::string> host_names = {};
  std::optional<std::int64_t> pid = {};
  std::string job_name = {};
  const TurnHistogram* turns = nullptr;
  /// This process hosts from now on: before its own agent comes. What it is given lives as long as the link.
  std::function<void(CoordinatorOps&)> hosting = {};
  /// How long the endpoint may stay out of reach, at the start or later, before LinkLost.
  Duration join_timeout = std::chrono::seconds{600};
  /// Where this process hosts the coordinator: what was decided, who came, who was refused.
  LogSink log = {};
};

/// The agent's link to the coordinator of its job, wherever that turns out to live. Returns at once; messages sent
/// before the way is known are kept.
///
/// Where the endpoint names this machine (its host name, an address of one of its interfaces, IPv6 included, looked up
/// off the loop) a coordinator with a store is opened there, in this process; if the port is taken by a peer that hosts
/// already, we connect to it, and host after all if it goes before it has answered. Where `is_host` leaves no such
/// choice the port is tried again for 5 s: a former agent of this machine may be about to end. Anywhere else we
/// connect, trying again until `join_timeout`. Where PyTorch's store answers instead of a coordinator, torchrun's
/// agents meet there, and we play one (net/torchrun_link). What is waited for is told by Waiting messages.
///
/// LinkLost: 67 when the endpoint was not reached within `join_timeout`, or somebody else's program has its port; 68
/// when token, version or job terms do not fit. With a token nobody who did not prove it ends, places or stops this
/// agent; it tries again until `join_timeout`, and a store of PyTorch's is no meeting place.
[[nodiscard]] std::unique_ptr<AgentLink> attach(boost::asio::io_context& loop, AttachSettings settings,
                                                AgentLink::Handler handler);

}  // namespace torchup
