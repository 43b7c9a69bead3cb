#include "launcher/os/worker/worker_store.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/system/system_error.hpp>
#include <system_error>
#include <thread>
#include <utility>

#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/store/store_server.hpp"

namespace torchup {

struct WorkerStore::State {
  explicit State(StoreServerOptions options) : server{loop, std::move(options)} {}
  ~State() {
    loop.stop();
    if (thread.joinable()) thread.join();
  }

  boost::asio::io_context loop{1};
  StoreServer server;
  std::optional<StoreGate> gate;
  Port port{0}, gate_port{0};
  std::thread thread;
};

WorkerStore::WorkerStore(std::unique_ptr<State> state) : state_{std::move(state)} {}
WorkerStore::WorkerStore(WorkerStore&&) noexcept = default;
WorkerStore& WorkerStore::operator=(WorkerStore&&) noexcept = default;
WorkerStore::~WorkerStore() = default;

Port WorkerStore::port() const { return state_->port; }
Port WorkerStore::gate_port() const { return state_->gate_port; }

/// A loop and a thread of its own, either of which the system may refuse: then they throw.
Result<WorkerStore> WorkerStore::open(Options options) try {
  StoreServerOptions server;
  server.bind = std::move(options.bind);
  server.port = options.port;
  server.admits = std::move(options.admits);
  server.refused = std::move(options.refused);
  server.log = std::move(options.log);
  auto state = std::make_unique<State>(std::move(server));
  auto listening = state->server.listen();
  if (!listening) return listening.error();
  state->port = *listening;
  if (options.gate) {
    state->gate.emplace(state->loop, state->server, *std::move(options.gate));
    const auto gate = state->gate->listen();
    if (!gate) return gate.error();
    state->gate_port = *gate;
  }
  state->thread = std::thread{[&loop = state->loop] { loop.run(); }};
  return WorkerStore{std::move(state)};
} catch (const std::system_error& error) {
  return Error{error.code(), "no thread for the workers' store"};
} catch (const boost::system::system_error& error) {
  return Error{error.code(), "no loop for the workers' store"};
}

struct WorkerProxy::State {
  explicit State(StoreProxyOptions options) : proxy{loop, std::move(options)} {}
  ~State() {
    loop.stop();
    if (thread.joinable()) thread.join();
  }

  boost::asio::io_context loop{1};
  StoreProxy proxy;
  Port port{0};
  std::thread thread;
};

WorkerProxy::WorkerProxy(std::unique_ptr<State> state) : state_{std::move(state)} {}
WorkerProxy::WorkerProxy(WorkerProxy&&) noexcept = default;
WorkerProxy& WorkerProxy::operator=(WorkerProxy&&) noexcept = default;
WorkerProxy::~WorkerProxy() = default;

Port WorkerProxy::port() const { return state_->port; }

Result<WorkerProxy> WorkerProxy::open(StoreProxyOptions options) try {
  auto state = std::make_unique<State>(std::move(options));
  const auto listening = state->proxy.listen();
  if (!listening) return listening.error();
  state->port = *listening;
  state->thread = std::thread{[&loop = state->loop] { loop.run(); }};
  return WorkerProxy{std::move(state)};
} catch (const std::system_error& error) {
  return Error{error.code(), "no thread for the store proxy"};
} catch (const boost::system::system_error& error) {
  return Error{error.code(), "no loop for the store proxy"};
}

Result<Port> free_port() {
  const auto failed = [] { return system_error("no free port"); };
  const UniqueFd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (!socket) return failed();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), generic, length) != 0 || ::getsockname(socket.get(), generic, &length) != 0) return failed();
  return Port{ntohs(address.sin_port)};
}

}  // namespace torchup
