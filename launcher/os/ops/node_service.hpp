#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/options/operations_options.hpp"
#include "launcher/os/ops/relayed_stream.hpp"
#include "launcher/os/ops/status_port.hpp"
#include "launcher/os/ops/user_socket.hpp"
#include "launcher/os/ops/worker_desk.hpp"
#include "launcher/os/output/disk_thread.hpp"
#include "rendezvous/net/daemon/coordinator_ops.hpp"
#include "rendezvous/net/ops/open_questions.hpp"
#include "rendezvous/net/ops/ops_service.hpp"
#include "rendezvous/net/ops/page_port.hpp"

namespace torchup {

struct NodeServiceSettings {
  RunId run_id{""};
  std::string host = {};      ///< of this node
  std::int64_t pid = 0;       ///< of the launcher, as users see it
  std::string name = {};      ///< of the program
  std::string meets_at = {};  ///< the rendezvous endpoint, for people
  std::string token = {};     ///< the job's; empty: there is none
  OperationsOptions doors = {};
};

/// Answers for the whole job at the doors of one agent: its control socket, its status port, a page on demand, and the
/// coordinator's questions about its workers.
///
/// Where the rounds are made in this process the coordinator's own service answers. Else what is asked is passed on to
/// the coordinator, and what it answers comes back. Where that is out of reach, or there is none because torchrun's
/// agents decide, the node tells what it knows by itself. Lives on the loop.
class NodeService final : private OpsSource {
 public:
  struct Hooks {
    /// To the coordinator.
    std::function<void(AgentMessage)> say;
    /// Whether it would hear that. False where torchrun's agents decide.
    std::function<bool()> reaches;
    std::function<bool()> is_foreign;
    /// Brings the page of what this node knows by itself up to date.
    std::function<void(JobPage&)> show;
    std::function<std::string()> metrics;                 ///< of this agent
    std::function<std::string()> readiness;               ///< `ok`, or in one word why not
    std::function<void(const std::string& by)> end_node;  ///< as SIGTERM would: at torchrun's rendezvous
    DoorWords words;
  };
  NodeService(asio::io_context& loop, NodeServiceSettings settings, DiskThread& disk, WorkerDesk& workers, Hooks hooks);
  NodeService(const NodeService&) = delete;
  NodeService& operator=(const NodeService&) = delete;

  /// Opens the doors. What cannot be opened is one warning.
  void open();
  /// The rounds are made here from now on.
  void host(CoordinatorOps& onlookers);
  [[nodiscard]] bool hosts_job() const { return onlookers_ != nullptr; }

  /// Something was recorded here: a JSON object in one line.
  void happened(std::string_view event);
  /// The job is over for this node: nobody who follows a stream from elsewhere hears more than this.
  void ended(std::string_view event);
  /// Of the coordinator, which asks for somebody.
  void answer(const Ask& question);
  void answered(Answer answer) { questions_.answered("", std::move(answer)); }

  /// Somebody follows a stream or a log, or waits for an answer.
  [[nodiscard]] bool is_followed() const {
    return http_.streams() > 0 || awaited_.use_count() > 1 || workers_.is_followed();
  }
  /// The doors close, and the socket's file goes.
  void close() { socket_.close(); }
  [[nodiscard]] const HttpServer& doors() const { return http_; }

 private:
  [[nodiscard]] bool hosts() const override { return !hooks_.reaches(); }
  [[nodiscard]] std::vector<JobPage*> pages() override;
  [[nodiscard]] JobPage* page(const std::string& run_id) override;
  void perform(const OpsCall& call, HttpServer::Reply reply) override;

  [[nodiscard]] HttpServer::Reply awaited(HttpServer::Reply reply);
  [[nodiscard]] OpsAccess access() const;
  void ask(const OpsCall& call, HttpServer::Reply reply, std::optional<Duration> limit = {});
  void give_jobs(const OpsCall& call, const HttpServer::Reply& reply);
  void follow(const OpsCall& call, const HttpServer::Reply& reply);
  void pass_on(const OpsCall& call, HttpServer::Reply reply);
  void obey(const OpsCall& call, const HttpServer::Reply& reply);
  void open_page(const HttpServer::Reply& reply);
  [[nodiscard]] OpsAnswer own_rows(Right right);
  [[nodiscard]] OpsAnswer not_here(const char* what) const;
  [[nodiscard]] std::string metrics() const;

  asio::io_context& loop_;
  const NodeServiceSettings settings_;
  WorkerDesk& workers_;
  const Hooks hooks_;
  CoordinatorOps* onlookers_ = nullptr;
  JobPage page_of_own_;  ///< what this node knows by itself
  TimePoint shown_{};
  std::shared_ptr<char> awaited_ = std::make_shared<char>();  ///< shared by all answers that are to come
  OpsService service_;
  HttpServer http_;
  OpenQuestions questions_;  ///< to the coordinator
  PagePort page_;
  StatusPort status_;
  UserSocket socket_;
  std::vector<std::weak_ptr<RelayedStream>> relayed_;
  std::vector<std::string> early_;  ///< events, while it is not known where the rounds are made
  bool decided_ = false;            ///< that is known
};

}  // namespace torchup
