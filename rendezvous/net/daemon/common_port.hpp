#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/text/source_list.hpp"
#include "rendezvous/net/coordinator/agent_sessions.hpp"
#include "rendezvous/net/daemon/admission.hpp"
#include "rendezvous/net/daemon/torchrun_refusal.hpp"
#include "rendezvous/net/io/stranger_list.hpp"
#include "rendezvous/net/io/tls_files.hpp"
#include "rendezvous/net/ops/http_server.hpp"
#include "rendezvous/net/store/store_server.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

class Coordinator;
class CoordinatorOps;

struct CommonPortOptions {
  std::string bind = {};  ///< as in StoreServerOptions, like the port
  Port port{0};
  StoreLimits store = {};
  ConnectionLimits connections = {};
  std::string token = {};     ///< agents must prove it
  std::string tls_cert = {};  ///< files of a certificate and its key, for https; both or none
  std::string tls_key = {};
  SourceList allowed = {};           ///< networks from which somebody may come without proving it
  bool embedded = false;             ///< this process is an agent of the job and takes the coordinator with it
  std::string only_job = {};         ///< AgentSessionsOptions::only_job
  bool admits_torchrun = true;       ///< its agents may join jobs here
  bool torchrun_store_here = false;  ///< TorchrunHostOptions::common_place
  LogSink log = {};
};

/// The one port of a coordinator, in torchupd as in an agent that hosts: clients of the store, agents, and people and
/// probes who ask over HTTP (core/ops/ops_route.hpp). Who comes in, and who gives way when descriptors
/// run out, is decided alike in both.
class CommonPort {
 public:
  /// The coordinator, and those who look at its jobs, must outlive this.
  CommonPort(boost::asio::io_context& loop, Coordinator& coordinator, CoordinatorOps& onlookers,
             CommonPortOptions options);
  CommonPort(const CommonPort&) = delete;
  CommonPort& operator=(const CommonPort&) = delete;

  /// As StoreServer::listen; errors of a certificate (TlsContext::server) come before. From then on torchrun's agents
  /// are admitted, or, where there is a token, refused.
  [[nodiscard]] Result<Port> listen();
  /// As AgentSessions::set_cut.
  void set_agents_cut(bool cut) { agents_.set_cut(cut); }
  [[nodiscard]] StoreServer& server() { return server_; }
  [[nodiscard]] const StoreServer& server() const { return server_; }

 private:
  [[nodiscard]] AgentSessionsOptions agents_options();
  [[nodiscard]] StoreServerOptions server_options();
  bool serve(unsigned char first_byte, UniqueFd& socket);
  void serve_https(UniqueFd socket, std::unique_ptr<TlsStream> tls, std::string first);

  boost::asio::io_context& loop_;
  CommonPortOptions options_;
  Coordinator& coordinator_;
  Admission admission_;
  std::shared_ptr<StrangerList> strangers_;
  std::shared_ptr<TlsFiles> tls_;  ///< null before listen(), and without token and certificate
  AgentSessions agents_;
  HttpServer& http_;
  std::shared_ptr<HttpDoor> door_;
  StoreServer server_;
  std::optional<TorchrunRefusal> refusal_;
};

}  // namespace torchup
