// How a client of a store finds its server, and comes back to it.
#include "rendezvous/net/store/store_client.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <thread>

#include "rendezvous/net/io/listen.hpp"
#include "rendezvous/net/io/silence_limit.hpp"
#include "rendezvous/net/store/blocking_connect.hpp"
#include "rendezvous/net/store/client_connection.hpp"
#include "rendezvous/net/store/store_server.hpp"
#include "tests/support/store_server_thread.hpp"

using namespace torchup;
using namespace torchup::test;
using namespace std::chrono_literals;

namespace {

/// For so many connections this machine has no local port left.
std::atomic<int> without_port = 0;

}  // namespace

/// In place of the C library's.
extern "C" int connect(int socket, const sockaddr* address, socklen_t size) {
  if (without_port > 0 && without_port-- > 0) {
    errno = EADDRNOTAVAIL;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_connect, socket, address, size));
}

namespace {

/// PyTorch's server as far as one client goes, with its answers when a test wants them.
class ScriptedServer {
 public:
  ScriptedServer() : listeners_{*listen_on("127.0.0.1", Port{0}, 90s)} {}
  [[nodiscard]] Port port() const { return listeners_.port; }
  /// The client's greeting: it is not one of ours.
  void greet() {
    while (!connection_) connection_.reset(::accept(listeners_.sockets[0].get(), nullptr, nullptr));
    const std::string hello = take(5 + 5 + 1 + 8 + 8 + extension_key.size());
    answer(hello.substr(6, 4) + '\1');
  }
  std::string take(std::size_t size) {
    std::string bytes(size, '\0');
    if (::recv(connection_.get(), bytes.data(), size, MSG_WAITALL) != static_cast<ssize_t>(size)) return "gone";
    return bytes;
  }
  void answer(const std::string& bytes) { (void)!::send(connection_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }

 private:
  Listeners listeners_;
  UniqueFd connection_;
};

}  // namespace

TEST_CASE("an answer that crosses the cancellation is the answer", "[net][store_client][own]") {
  ScriptedServer server;
  std::thread script{[&] {
    server.greet();
    server.take(1 + 8 + 8 + 2);             // WAIT for /k
    server.take(1);                         // CANCEL_WAIT
    server.answer(std::string{"\0\1", 2});  // the key came before; then the word for the cancellation
    server.take(1 + 8 + 8 + 2);             // MULTI_GET
    server.answer(std::string{"\1\0\0\0\0\0\0\0v", 9});
    server.take(1 + 8 + 2 + 8);  // ADD: the connection is in step
    server.answer(std::string{"\7\0\0\0\0\0\0\0", 8});
  }};
  auto client = *StoreClient::connect({"127.0.0.1", server.port(), 10s});
  client->set_timeout(10ms);
  const std::string late = text(client->get("k"));
  client->set_timeout(10s);
  const auto sum = client->add("n", 7);
  script.join();
  REQUIRE(late == "v");
  REQUIRE(*sum == 7);
}

TEST_CASE("nobody there: an error with every address, when the time is over", "[net][store_client][own]") {
  auto listeners = listen_on("127.0.0.1", Port{0}, 90s);
  const Port port = listeners->port;
  listeners->sockets.clear();
  const auto begin = std::chrono::steady_clock::now();
  const auto client = StoreClient::connect({"127.0.0.1", port, 150ms});
  REQUIRE(client.has_error());
  REQUIRE(client.error().code == boost::system::errc::timed_out);
  REQUIRE(client.error().context.find("127.0.0.1:" + std::to_string(port.value())) != std::string::npos);
  REQUIRE(std::chrono::steady_clock::now() - begin >= 150ms);
}

TEST_CASE("a client notices within the server's time that the other machine is gone", "[net][store_client][own]") {
  const auto listeners = listen_on("127.0.0.1", Port{0}, ConnectionLimits{}.silent_peer_max);
  const auto client = blocking_connect("127.0.0.1", listeners->port, std::chrono::steady_clock::now() + 5s);
  REQUIRE(client.has_value());
  const auto same = [&](int level, int option) {
    int servers = 0, clients = 0;
    socklen_t size = sizeof servers;
    ::getsockopt(listeners->sockets.at(0).get(), level, option, &servers, &size);
    ::getsockopt(client->get(), level, option, &clients, &size);
    return servers > 0 && clients == servers;
  };
  REQUIRE(same(SOL_SOCKET, SO_KEEPALIVE));
  REQUIRE(same(IPPROTO_TCP, TCP_KEEPIDLE));
  REQUIRE(same(IPPROTO_TCP, TCP_KEEPINTVL));
  REQUIRE(same(IPPROTO_TCP, TCP_KEEPCNT));
  REQUIRE(same(IPPROTO_TCP, TCP_USER_TIMEOUT));
}

TEST_CASE("a machine that the kernel gives up is a lost connection, not a late answer", "[net][store_client][own]") {
  const auto listeners = listen_on("127.0.0.1", Port{0}, 90s);  // nobody reads: nothing that is sent gets through
  UniqueFd socket = *blocking_connect("127.0.0.1", listeners->port, std::chrono::steady_clock::now() + 5s);
  limit_silence(socket.get(), 1s);
  ClientConnection connection{std::move(socket)};
  OutgoingRequest request{Query::set};
  const std::string large(16'000'000, 'x');
  request.key("k");
  request.value(large);
  const auto sent = connection.send(request, std::chrono::steady_clock::now() + 25s);
  REQUIRE(sent.has_error());
  REQUIRE(sent.error().code == boost::system::errc::connection_reset);
}

TEST_CASE("a server that starts late is found", "[net][store_client][own]") {
  // A socket that has the port and does not listen: who connects is refused, and nobody else gets the port.
  const UniqueFd holder{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(holder.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
  REQUIRE(::getsockname(holder.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  std::atomic<bool> listens = false;
  std::thread starter{[&] {
    std::this_thread::sleep_for(100ms);
    listens = true;
    ::listen(holder.get(), 8);
    UniqueFd connection;
    while (!connection) connection.reset(::accept(holder.get(), nullptr, nullptr));
    std::string hello(5 + 5 + 1 + 8 + 8 + extension_key.size(), '\0');
    (void)!::recv(connection.get(), hello.data(), hello.size(), MSG_WAITALL);
    const std::string answer = hello.substr(6, 4) + '\1';
    (void)!::send(connection.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
  }};
  const auto client = StoreClient::connect({"127.0.0.1", Port{ntohs(address.sin_port)}, 10s});
  starter.join();
  REQUIRE(client.has_value());
  REQUIRE(listens);
}

TEST_CASE("where no local port is free, the client tries again until one is", "[net][store_client][own]") {
  ServerThread server;
  without_port = 3;
  const auto client = StoreClient::connect({"127.0.0.1", server.port(), 10s});
  REQUIRE(without_port == 0);
  REQUIRE(client.has_value());
  without_port = 1'000'000;
  const auto never = StoreClient::connect({"127.0.0.1", server.port(), 300ms});
  without_port = 0;
  REQUIRE(never.has_error());
  REQUIRE(never.error().context.find("Cannot assign requested address") != std::string::npos);  // what it waited for
}

TEST_CASE("a peer that accepts and stays silent, or says something else", "[net][store_client][own]") {
  auto listeners = listen_on("127.0.0.1", Port{0}, 90s);
  const bool talks = GENERATE(false, true);
  std::thread peer{[&] {
    UniqueFd connection;
    while (!connection) connection.reset(::accept(listeners->sockets[0].get(), nullptr, nullptr));
    if (talks) (void)::send(connection.get(), "SSH-2.0-OpenSSH_9.2\r\n", 21, MSG_NOSIGNAL);
    char byte = 0;
    while (::recv(connection.get(), &byte, 1, 0) > 0) {
    }  // until the client goes
  }};
  const auto client = StoreClient::connect({"127.0.0.1", listeners->port, 150ms});
  peer.join();
  REQUIRE(client.has_error());
  if (talks) REQUIRE(client.error().code == errc::bad_frame);
  if (!talks) REQUIRE(client.error().code == boost::system::errc::timed_out);
}

TEST_CASE("who is cancelled waits for nothing any more, neither for a key nor for a connection",
          "[net][store_client][own]") {
  const UniqueFd cancel{::eventfd(0, EFD_CLOEXEC)};
  const auto end_it = [&] {
    const std::uint64_t one = 1;
    REQUIRE(::write(cancel.get(), &one, sizeof one) == sizeof one);
  };
  constexpr auto canceled = boost::system::errc::operation_canceled;
  SECTION("a wait for a key, and what comes after it") {
    ScriptedServer server;
    std::thread script{[&] {
      server.greet();
      server.take(1 + 8 + 8 + 2);  // WAIT for /k: it is under way
      end_it();
    }};
    const auto client = *StoreClient::connect({"127.0.0.1", server.port(), 60s, cancel.get()});
    const auto value = client->get("k");
    script.join();
    REQUIRE(value.error().code == canceled);
    REQUIRE(client->add("n", 1).has_error());
    REQUIRE(client->clone().error().code == canceled);
  }
  SECTION("a port where nobody listens") {
    const UniqueFd holder{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(holder.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
    REQUIRE(::getsockname(holder.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    std::thread ender{[&] {
      std::this_thread::sleep_for(50ms);
      end_it();
    }};
    const auto client = StoreClient::connect({"127.0.0.1", Port{ntohs(address.sin_port)}, 3600s, cancel.get()});
    ender.join();
    REQUIRE(client.error().code == canceled);
  }
}

TEST_CASE("a client does not come back to another store under the same address", "[net][store_client][own]") {
  auto server = std::make_unique<ServerThread>();
  const Port port = server->port();
  auto client = *StoreClient::connect({"localhost", port, 5s});
  REQUIRE(ok(client->set("k", "v")));
  REQUIRE(text(client->get("k")) == "v");
  server.reset();
  server = std::make_unique<ServerThread>(port);
  const auto read = client->get("k");
  REQUIRE(read.has_error());
  REQUIRE(client->add("n", 1).error().message().find("its keys are gone") != std::string::npos);
}

namespace {

/// Passes bytes on between a client and a server until it is told to cut.
class Relay {
 public:
  explicit Relay(Port server) : server_{server}, listeners_{*listen_on("127.0.0.1", Port{0}, 90s)} {
    thread_ = std::thread{[this] { run(); }};
  }
  ~Relay() {
    ended_ = true;
    thread_.join();
  }
  [[nodiscard]] Port port() const { return listeners_.port; }
  void cut() { cut_ = true; }

 private:
  void run() {
    std::vector<std::pair<UniqueFd, UniqueFd>> pairs;
    std::vector<char> buffer(65536);
    while (!ended_) {
      if (cut_.exchange(false)) pairs.clear();
      if (UniqueFd client{::accept4(listeners_.sockets[0].get(), nullptr, nullptr, SOCK_NONBLOCK)}; client) {
        pairs.emplace_back(std::move(client),
                           *blocking_connect("127.0.0.1", server_, std::chrono::steady_clock::now() + 5s));
      }
      bool idle = true;
      for (auto& [a, b] : pairs)
        for (const auto& [from, to] : {std::pair{a.get(), b.get()}, std::pair{b.get(), a.get()}})
          if (const ssize_t got = ::recv(from, buffer.data(), buffer.size(), MSG_DONTWAIT); got > 0) {
            idle = false;
            (void)::send(to, buffer.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL);
          }
      if (idle) std::this_thread::sleep_for(100us);
    }
  }

  Port server_;
  Listeners listeners_;
  std::atomic<bool> cut_ = false, ended_ = false;
  std::thread thread_;
};

}  // namespace

TEST_CASE("a cut connection to our server is made again", "[net][store_client][own]") {
  ServerThread server;
  Relay relay{server.port()};
  auto client = *StoreClient::connect({"127.0.0.1", relay.port(), 5s});
  REQUIRE(ok(client->set("k", "v")));
  REQUIRE(text(client->get("k")) == "v");
  SECTION("within a call that only reads, while it waits") {
    auto direct = *StoreClient::connect({"localhost", server.port(), 5s});
    std::thread other{[&] {
      server.until_waiting(1);
      const auto accepted = server.status().accepted;
      relay.cut();
      while (server.status().accepted == accepted) std::this_thread::yield();
      server.until_waiting(1);  // it has come back, and asks again
      (void)direct->set("late", "came");
    }};
    REQUIRE(text(client->get("late")) == "came");
    other.join();
  }
  SECTION("but a call that changes something is not repeated") {
    relay.cut();
    while (server.status().connections > 0) std::this_thread::yield();
    REQUIRE(client->add("n", 1).has_error());
    REQUIRE(*client->add("n", 1) == 1);
  }
}
