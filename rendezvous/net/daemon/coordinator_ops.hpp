#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/core/link/operations_pacing.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/daemon/coordinator_source.hpp"
#include "rendezvous/net/ops/open_questions.hpp"
#include "rendezvous/net/ops/ops_service.hpp"
#include "rendezvous/net/ops/page_port.hpp"

namespace torchup {

struct CoordinatorOpsOptions {
  std::string token = {};                    ///< the jobs': the right to steer, over TCP
  std::string read_token = {};               ///< to see, from elsewhere too
  std::vector<std::string> host_names = {};  ///< OpsAccess::host_names, beside this machine's own
  /// CoordinatorSourceOptions::own_job, which the page that is opened on demand shows; empty: it shows all.
  std::string own_job = {};
  std::optional<std::int64_t> pid = {};  ///< CoordinatorSourceOptions::pid
  std::string job_name = {};             ///< of the program, where this process knows it; else empty
  EventRings::Limits events = {};
  const TurnHistogram* turns = nullptr;  ///< of the loop, which outlives this; null: nobody counts them
};

/// Of the port by which agents and clients of the store come.
struct PortNumbers {
  StoreServerStatus store = {};
  std::uint64_t agents = 0;  ///< connected
};

/// Those who look at a coordinator's jobs and steer them: whoever asks by whatever door, a browser on this machine, and
/// other nodes on behalf of theirs. Lives as long as the jobs do; ports and sockets give it who comes.
class CoordinatorOps {
 public:
  /// Before any agent comes. The coordinator must outlive it.
  CoordinatorOps(boost::asio::io_context& loop, Coordinator& coordinator, CoordinatorOpsOptions options);
  CoordinatorOps(const CoordinatorOps&) = delete;
  CoordinatorOps& operator=(const CoordinatorOps&) = delete;
  ~CoordinatorOps();

  [[nodiscard]] HttpServer& http() { return http_; }
  [[nodiscard]] OpsService& service() { return service_; }
  /// What a port wants of those who come.
  [[nodiscard]] OpsAccess access() const;
  /// Without it there is none.
  void set_port(std::function<PortNumbers()> numbers) { port_ = std::move(numbers); }

  /// An agent in this process, of CoordinatorOpsOptions::own_job.
  struct OwnAgent {
    /// Records that order of its job: by `happened`, and for itself.
    std::function<void(const OrderReceived&)> ordered = {};
    std::function<std::string()> metrics = {};  ///< its own, to be told behind the others
    const HttpServer* doors = nullptr;          ///< it answers there too, with the `service` of this
  };
  void set_own_agent(OwnAgent agent) { own_ = std::move(agent); }
  /// Something that one of its agents has recorded: a JSON object in one line. What is none is nothing.
  void happened(const RunId& run_id, std::string_view event);
  /// Null: there is no such job. Not from within a call of the coordinator's.
  [[nodiscard]] JobPage* page_of(const RunId& run_id) { return jobs_.page(run_id.value()); }

 private:
  [[nodiscard]] CoordinatorSourceOptions source_options();
  [[nodiscard]] CoordinatorNumbers numbers() const;
  void perform(const OpsCall& call, HttpServer::Reply reply);
  /// An order, which is answered when it is noted: by then it would survive this process.
  struct Order {
    RunId run_id;
    HttpServer::Reply reply;
    std::optional<OpsAnswer> answer = {};
    bool noted = false;
  };
  [[nodiscard]] std::string why_nobody_obeys(const std::string& run_id) const;
  void obey(const OpsCall& call, const HttpServer::Reply& reply);
  void order_noted(const RunId& run_id);
  void drop_lost_orders();
  void answer_order(std::list<Order>::iterator order);
  void ask_nodes(const OpsCall& call, HttpServer::Reply reply);
  void open_page(const HttpServer::Reply& reply);
  [[nodiscard]] bool may_cross(const OpsCall& call, const std::string& node) const;
  /// What one agent may say to us, which it is not trusted to keep to.
  struct Allowed {
    std::size_t questions = 0;  ///< open
    EventAllowance events = {};
    std::uint64_t lost = 0;  ///< NodeEvent::lost, the last
  };
  void heard(const RunId& run_id, const NodeId& node, Coordinator::NodeWord word);
  [[nodiscard]] Allowed& allowed(const RunId& run_id, const NodeId& node);
  void heard_event(const RunId& run_id, const NodeId& node, NodeEvent event);
  void heard_question(const RunId& run_id, const NodeId& node, Ask question);
  void keep_only(const std::set<std::string>& run_ids);
  void answer(const RunId& run_id, const NodeId& node, const Ask& question);
  [[nodiscard]] OpsAnswer own_row(const RunId& run_id, Right right);
  void noted(const RunId& run_id, const Note& note);

  boost::asio::io_context& loop_;
  Coordinator& coordinator_;
  CoordinatorOpsOptions options_;
  std::string host_;  ///< this machine's name
  std::function<PortNumbers()> port_;
  OwnAgent own_ = {};
  CoordinatorSource jobs_;
  OpsService service_;
  HttpServer http_;
  PagePort page_;
  std::list<Order> orders_;                                         ///< that are not answered yet
  OpenQuestions questions_;                                         ///< to nodes
  std::map<std::pair<std::string, std::string>, Allowed> allowed_;  ///< by run id and agent's name
  std::uint64_t events_lost_ = 0;                                   ///< that agents did not tell, or told too many of
  std::shared_ptr<CoordinatorOps*> self_;  ///< what is done later finds null there when this has gone
};

}  // namespace torchup
