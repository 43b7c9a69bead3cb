#include "rendezvous/net/daemon/daemon.hpp"

#include <boost/asio/io_context.hpp>
#include <utility>

#include "rendezvous/net/coordinator/agent_sessions.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/coordinator/state_directory.hpp"
#include "rendezvous/net/daemon/admission.hpp"
#include "rendezvous/net/daemon/daemon_pages.hpp"
#include "rendezvous/net/daemon/http.hpp"
#include "rendezvous/net/daemon/torchrun_refusal.hpp"
#include "rendezvous/net/io/log.hpp"

namespace torchup {

namespace asio = boost::asio;

class Daemon::Impl {
 public:
  Impl(asio::io_context& loop, DaemonSettings settings, Log& log)
      : loop_{loop}, settings_{std::move(settings)}, log_{log}, admission_{.token = !settings_.token.empty(),
                                                                           .allowed = settings_.allowed},
        coordinator_{loop, log.sink(), {.agents_max = settings_.agents_max}},
        agents_{loop, coordinator_, {.token = settings_.token, .admits = admission_.of_agents(), .log = log.sink()}},
        http_{loop, {.pages = pages(), .token = settings_.token}}, server_{loop, store_options()} {}

  /// Agents' connections are closed after this, and what is then heard of them is no news.
  ~Impl() {
    if (!ended_) coordinator_.abandon_state();
  }

  std::optional<int> start() {
    if (!settings_.state_dir.empty()) {
      auto opened = StateDirectory::open(loop_, settings_.state_dir);
      auto kept = opened ? coordinator_.keep_state(**opened) : Result<>{opened.error()};
      if (!kept) return failed(65, kept.error());
      state_ = std::move(*opened);
    }
    if (const auto port = server_.listen(); !port) {
      return failed(port.error().code == errc::bad_value ? 2 : 67, port.error());
    }
    if (settings_.store_only) return std::nullopt;
    if (admission_.token) {
      refusal_.emplace(server_);
    } else {
      coordinator_.admit_torchrun(server_, {.bind = settings_.bind, .common_place = settings_.torchrun_store_here});
    }
    return std::nullopt;
  }

  [[nodiscard]] const StoreServer& server() const { return server_; }
  void drain(std::function<void()> done) { server_.drain(std::move(done)); }

  void end() {
    coordinator_.release_state();
    ended_ = true;
  }

 private:
  int failed(int exit_code, const Error& error) {
    log_.tell({LogLevel::error, error.message()});
    return exit_code;
  }

  std::map<std::string, HttpOptions::Page, std::less<>> pages() {
    return {
        {"/healthz", {"text/plain; charset=utf-8", [] { return std::string{"ok\n"}; }}},
        {"/metrics", {"text/plain; version=0.0.4; charset=utf-8", [this] { return metrics_page(server_.status()); }}},
        {"/status", {"application/json", [this] { return status_page(server_.status(), coordinator_); }}},
    };
  }

  StoreServerOptions store_options() {
    StoreServerOptions options;
    options.bind = settings_.bind;
    options.port = settings_.port;
    options.limits = settings_.store;
    options.connections = settings_.connections;
    options.admits = admission_.of_store_clients(coordinator_);
    options.log = log_.sink();
    if (!settings_.store_only) {
      options.gives_descriptor = [this] { return agents_.drop_newcomer("this process has no descriptor left"); };
      options.other_language = [this](unsigned char first_byte, UniqueFd& socket) { return serve(first_byte, socket); };
    }
    return options;
  }

  bool serve(unsigned char first_byte, UniqueFd& socket) {
    if (begins_agent(first_byte)) {
      agents_.serve(std::move(socket));
    } else if (begins_http(first_byte)) {
      http_.serve(std::move(socket));
    } else {
      return false;
    }
    return true;
  }

  asio::io_context& loop_;
  DaemonSettings settings_;
  Log& log_;
  Admission admission_;
  std::unique_ptr<StateDirectory> state_;  ///< outlives what writes there
  Coordinator coordinator_;
  AgentSessions agents_;
  HttpService http_;
  StoreServer server_;
  std::optional<TorchrunRefusal> refusal_;
  bool ended_ = false;
};

Daemon::Daemon(asio::io_context& loop, DaemonSettings settings, Log& log)
    : impl_{std::make_unique<Impl>(loop, std::move(settings), log)} {}
Daemon::~Daemon() = default;

std::optional<int> Daemon::start() { return impl_->start(); }
std::string Daemon::address() const { return impl_->server().address(); }
std::size_t Daemon::connection_count() const { return impl_->server().status().connections; }
void Daemon::drain(std::function<void()> done) { impl_->drain(std::move(done)); }
void Daemon::end() { impl_->end(); }

}  // namespace torchup
