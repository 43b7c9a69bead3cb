#include "rendezvous/net/daemon/daemon.hpp"

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <utility>

#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/coordinator/state_directory.hpp"
#include "rendezvous/net/daemon/admission.hpp"
#include "rendezvous/net/daemon/common_port.hpp"
#include "rendezvous/net/daemon/coordinator_ops.hpp"
#include "rendezvous/net/daemon/events_file.hpp"
#include "rendezvous/net/io/log.hpp"
#include "rendezvous/net/io/loop_turns.hpp"
#include "rendezvous/net/ops/control_socket.hpp"
#include "rendezvous/net/ops/http_port.hpp"

namespace torchup {

namespace asio = boost::asio;

class Daemon::Impl {
 public:
  Impl(asio::io_context& loop, DaemonSettings settings, Log& log)
      : loop_{loop}, settings_{std::move(settings)}, log_{log}, coordinator_{loop,
                                                                             log.sink(),
                                                                             {.agents_max = settings_.agents_max}} {
    if (settings_.store_only) {
      store_.emplace(loop, store_options());
    } else {
      onlookers_.emplace(loop, coordinator_,
                         CoordinatorOpsOptions{.token = settings_.token,
                                               .read_token = settings_.read_token,
                                               .host_names = settings_.host_names,
                                               .turns = &turns_});
      onlookers_->service().set_recorded([this](const std::string& run_id, std::uint64_t seq, std::string_view event) {
        if (events_) events_->write(event_line(run_id, seq, event));
      });
      port_.emplace(loop, coordinator_, *onlookers_, port_options());
    }
  }

  /// Agents' connections are closed after this, and what is then heard of them is no news.
  ~Impl() {
    if (!ended_) coordinator_.abandon_state();
  }

  std::optional<int> start() {
    if (!settings_.events_file.empty()) {
      auto opened = EventsFile::open(loop_, settings_.events_file, log_.sink());
      if (!opened) return failed(2, opened.error());
      events_ = std::move(*opened);
    }
    if (!settings_.state_dir.empty()) {
      auto opened = StateDirectory::open(loop_, settings_.state_dir);
      auto kept = opened ? coordinator_.keep_state(**opened) : Result<>{opened.error()};
      if (!kept) return failed(65, kept.error());
      state_ = std::move(*opened);
    }
    const auto port = port_ ? port_->listen() : store_->listen();
    if (port) listened_ = *port;
    if (!port) return failed(port.error().code == errc::bad_value ? 2 : 67, port.error());
    if (port_ && settings_.control_socket) open_control_socket();
    return std::nullopt;
  }

  /// What only stores has no page on which turns would be told of.
  void run() {
    if (port_) {
      run_turns(loop_, turns_);
    } else {
      loop_.run();
    }
  }

  [[nodiscard]] Port port() const { return listened_; }
  [[nodiscard]] Coordinator& coordinator() { return coordinator_; }
  [[nodiscard]] StoreServer& server() { return port_ ? port_->server() : *store_; }
  void drain(std::function<void()> done) { server().drain(std::move(done)); }

  void end() {
    coordinator_.release_state();
    ended_ = true;
  }

 private:
  int failed(int exit_code, const Error& error) {
    log_.tell({LogLevel::error, error.message()});
    return exit_code;
  }

  void open_control_socket() {
    auto socket = ControlSocket::make(runtime_directory(), ::getpid());
    if (!socket) return log_.tell({LogLevel::warning, socket.error().message()});
    control_socket_.emplace(std::move(*socket));
    std::vector<UniqueFd> sockets;
    sockets.push_back(control_socket_->take());
    const auto door = std::make_shared<HttpDoor>();
    door->access.own_uid = ::geteuid();
    control_port_.emplace(loop_, onlookers_->http(), std::move(sockets), door);
  }

  CommonPortOptions port_options() {
    return {.bind = settings_.bind,
            .port = settings_.port,
            .store = settings_.store,
            .connections = settings_.connections,
            .token = settings_.token,
            .tls_cert = settings_.tls_cert,
            .tls_key = settings_.tls_key,
            .allowed = settings_.allowed,
            .torchrun_store_here = settings_.torchrun_store_here,
            .log = log_.sink()};
  }

  StoreServerOptions store_options() {
    const Admission admission{.token = !settings_.token.empty(), .allowed = settings_.allowed};
    StoreServerOptions options;
    options.bind = settings_.bind;
    options.port = settings_.port;
    options.limits = settings_.store;
    options.connections = settings_.connections;
    options.admits = admission.of_store_clients(coordinator_);
    options.log = log_.sink();
    return options;
  }

  asio::io_context& loop_;
  DaemonSettings settings_;
  Log& log_;
  std::unique_ptr<StateDirectory> state_;  ///< outlives what writes there
  std::unique_ptr<EventsFile> events_;     ///< null: nobody wants them
  Coordinator coordinator_;
  TurnHistogram turns_;
  std::optional<CoordinatorOps> onlookers_;
  std::optional<CommonPort> port_;
  std::optional<StoreServer> store_;  ///< in place of it
  std::optional<ControlSocket> control_socket_;
  std::optional<HttpPort> control_port_;
  Port listened_{0};
  bool ended_ = false;
};

Daemon::Daemon(asio::io_context& loop, DaemonSettings settings, Log& log)
    : impl_{std::make_unique<Impl>(loop, std::move(settings), log)} {}
Daemon::~Daemon() = default;

std::optional<int> Daemon::start() { return impl_->start(); }
void Daemon::run() { impl_->run(); }
std::string Daemon::address() const { return impl_->server().address(); }
Port Daemon::port() const { return impl_->port(); }
Coordinator& Daemon::coordinator() { return impl_->coordinator(); }
std::size_t Daemon::connection_count() const { return impl_->server().status().connections; }
void Daemon::drain(std::function<void()> done) { impl_->drain(std::move(done)); }
void Daemon::end() { impl_->end(); }

}  // namespace torchup
