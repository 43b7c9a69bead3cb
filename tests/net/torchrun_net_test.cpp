#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <chrono>

#include "rendezvous/net/agent/torchrun_link.hpp"
#include "rendezvous/net/coordinator/torchrun_host.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/store/store_server.hpp"
#include "tests/support/store_harness.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

sockaddr_in loopback(Port port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port.value());
  return address;
}

UniqueFd connect_to(Port port) {
  UniqueFd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const sockaddr_in address = loopback(port);
  REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  return socket;
}

void send_all(const UniqueFd& socket, const std::string& bytes) {
  REQUIRE(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

/// Runs `loop` until `condition` holds; fails after thirty seconds.
template <class Condition>
void run_until(boost::asio::io_context& loop, Condition condition) {
  const auto end = std::chrono::steady_clock::now() + 30s;
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    loop.restart();
    loop.run_for(1ms);
  }
}

/// A store with torchrun's meetings in it.
struct Host {
  Host() {
    const auto opened = server.listen();
    REQUIRE(opened.has_value());
    port = *opened;
  }
  static StoreServerOptions options() {
    StoreServerOptions options;
    options.bind = "127.0.0.1";
    return options;
  }
  /// As an agent does that is the first to come.
  void meet(const UniqueFd& socket, const std::string& run_id) {
    send_all(socket, test::request(Query::compare_set, {"/torch.rendezvous." + run_id}, {"", "Y2FuaW1hZGFt"}));
  }
  void turn(Duration at) { host.turn(TimePoint{} + at, UtcTime{} + 1h); }

  boost::asio::io_context loop;
  StoreServer server{loop, options()};
  TorchrunHost host{loop, server, {}, {}};
  Port port{0};
};

/// A program that greets as PyTorch's store does, and answers nothing else.
struct SilentStore {
  SilentStore() {
    sockaddr_in address = loopback(Port{0});
    socklen_t size = sizeof address;
    REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener.get(), 4) == 0);
    REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port = Port{ntohs(address.sin_port)};
  }
  /// True once a client has been greeted and has asked something.
  bool asked() {
    if (client.get() < 0) client = UniqueFd{::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    if (client.get() < 0) return false;
    char buffer[4096];
    const ssize_t got = ::recv(client.get(), buffer, sizeof buffer, 0);
    if (got <= 0) return false;
    bytes.append(buffer, static_cast<std::size_t>(got));
    constexpr std::size_t ping_at = 5;  // VALIDATE and its number; then PING and its number, which comes back
    if (!greeted && bytes.size() > ping_at + 5) {
      send_all(client, bytes.substr(ping_at + 1, 4) + '\1');  // and no, it has no such key
      greeted = true;
      bytes.clear();
    }
    return greeted && !bytes.empty();
  }
  /// Whether the client has not hung up.
  [[nodiscard]] bool connected() const {
    char byte = 0;
    return ::recv(client.get(), &byte, 1, MSG_PEEK) < 0 && errno == EAGAIN;
  }

  UniqueFd listener{::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  UniqueFd client;
  Port port{0};
  std::string bytes;
  bool greeted = false;
};

}  // namespace

TEST_CASE("a meeting that nobody has a part in is forgotten", "[net][torchrun]") {
  Host host;
  std::optional<UniqueFd> client = connect_to(host.port);
  send_all(*client, test::validate);
  host.meet(*client, "job");
  run_until(host.loop, [&] { return host.host.jobs().size() == 1; });
  host.turn(0s);
  host.turn(24h);
  REQUIRE(host.host.jobs().size() == 1);  // its agent is there
  client.reset();
  run_until(host.loop, [&] { return host.server.status().connections == 0; });
  host.turn(25h);
  host.turn(25h + meeting_kept - 1ms);
  REQUIRE(host.host.jobs().size() == 1);
  REQUIRE(host.server.store().find("/torch.rendezvous.job"));
  host.turn(25h + meeting_kept);
  REQUIRE(host.host.jobs().empty());
  REQUIRE_FALSE(host.server.store().find("/torch.rendezvous.job"));
}

TEST_CASE("a store holds so many meetings", "[net][torchrun]") {
  Host host;
  const UniqueFd client = connect_to(host.port);
  send_all(client, test::validate);
  const std::string last = fmt::format("job{}", meetings_max);
  for (std::size_t i = 0; i <= meetings_max; ++i) {
    host.meet(client, fmt::format("job{}", i));
    host.loop.restart();
    host.loop.poll();
  }
  run_until(host.loop, [&] { return host.server.store().find("/torch.rendezvous." + last) != nullptr; });
  REQUIRE(host.host.jobs().size() == meetings_max);
  REQUIRE_FALSE(host.host.find(RunId{last}));
  host.turn(0s);
  host.turn(meeting_kept);  // the client has a part in the first one alone
  host.meet(client, last);
  run_until(host.loop, [&] { return host.host.find(RunId{last}) != nullptr; });
}

TEST_CASE("nobody waits for a store of torchrun's that does not answer", "[net][torchrun]") {
  SilentStore store;
  boost::asio::io_context loop;
  bool is_store = false;
  std::optional<LinkEvent> heard;
  auto link = connect_torchrun(
      loop, {.endpoint = {"127.0.0.1", store.port}, .run_id = RunId{"job"}}, [&](bool answers) { is_store = answers; },
      [&](LinkEvent event) { heard = std::move(event); });
  run_until(loop, [&] { return store.asked() && is_store; });
  SECTION("where the agent is done with it") {
    link.reset();
    REQUIRE(store.connected());  // the thread still asks
  }
  SECTION("where the user wants to leave") {
    link->send(Leave{.ends_job = false, .exit_code = 143, .reason = "got SIGTERM"});
    run_until(loop, [&] { return heard.has_value(); });
    REQUIRE(store.connected());
    const auto* message = std::get_if<CoordinatorMessage>(&*heard);
    REQUIRE(message);
    REQUIRE(std::get<End>(*message).verdict.exit_code == 143);
  }
}
