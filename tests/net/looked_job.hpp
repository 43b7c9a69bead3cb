#pragma once

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/net/daemon/coordinator_ops.hpp"
#include "rendezvous/net/io/node_identity.hpp"
#include "tests/support/long_running.hpp"

/// A job at a coordinator that is looked at and steered: its agents and the person are the test's.
namespace torchup::looked_job {

using nlohmann::json;

inline const RunId run_id{"a/b"};

/// An agent as the coordinator knows it; what it is told is kept.
class Agent final : public Coordinator::Listener {
 public:
  explicit Agent(Coordinator& coordinator, const std::string& observed = "10.0.0.1", const RunId& job = run_id)
      : attendance{coordinator.open(job, {.observed = observed, .coordinator = "10.0.0.9"}, *this)} {}
  void tell(CoordinatorMessage message) override {
    if (std::exchange(fails_next, false)) throw std::runtime_error{"a fault of ours"};
    heard.push_back(std::move(message));
  }
  void refuse(int, std::string) override {}
  void let_go(std::string) override {}

  void join(const std::string& host) const {
    Join join;
    join.node = NodeId{host + "_1_0"};
    join.host = host;
    join.terms.min_nodes = join.terms.max_nodes = 2;
    join.local_world_size = 2;
    attendance->said(join);
  }
  [[nodiscard]] std::vector<Ask> asked() const {
    std::vector<Ask> list;
    for (const auto& message : heard) {
      if (const auto* ask = std::get_if<Ask>(&message)) list.push_back(*ask);
    }
    return list;
  }
  [[nodiscard]] std::optional<Answer> answered() const {
    for (const auto& message : heard) {
      if (const auto* answer = std::get_if<Answer>(&message)) return *answer;
    }
    return std::nullopt;
  }

  std::vector<CoordinatorMessage> heard = {};
  bool fails_next = false;  ///< its connection does, once
  std::unique_ptr<Coordinator::Attendance> attendance;
};

/// A job of this machine's node and one elsewhere whose round runs.
struct Looked {
  explicit Looked(std::string token = "the job's token") : Looked{CoordinatorOpsOptions{.token = std::move(token)}} {}
  explicit Looked(CoordinatorOpsOptions options) : onlookers{loop, coordinator, std::move(options)} {
    here.join(own_host_name());
    elsewhere.join("elsewhere");
    const bool here_hosts = is_told_to_host(here);
    (here_hosts ? here : elsewhere).attendance->said(StoreReady{Round{0}, Port{4000}});
    run();
  }
  static bool is_told_to_host(const Agent& agent) {
    for (const auto& message : agent.heard) {
      if (std::holds_alternative<HostStore>(message)) return true;
    }
    return false;
  }
  void run() {
    loop.restart();
    loop.poll();
  }
  /// What somebody is answered who comes by the unix socket.
  std::optional<OpsAnswer>& ask(const std::string& method, const std::string& target, const std::string& body = "") {
    OpsRequest request{.method = method, .target = target, .headers = {}};
    if (!body.empty()) request.headers.emplace_back("Content-Type", "application/json");
    given.reset();
    onlookers.service().perform(request, {.right = Right::control, .by = "user u (uid 7)", .proved = true}, body,
                                [this](OpsReply reply) { given = std::get<OpsAnswer>(std::move(reply)); });
    run();
    return given;
  }
  int first_rank(const std::string& host) {
    const json nodes = json::parse(ask("GET", "/v1/jobs/a%2Fb")->body).at("nodes");
    for (const auto& node : nodes) {
      if (node.at("host") == host) return node.at("first_rank");
    }
    return -1;
  }

  boost::asio::io_context loop;
  Coordinator coordinator{loop, {}, test::long_running()};
  CoordinatorOps onlookers;
  Agent here{coordinator, "127.0.0.1"}, elsewhere{coordinator};
  std::optional<OpsAnswer> given;
};

}  // namespace torchup::looked_job
