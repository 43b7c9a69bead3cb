// The client against our own server; or, when TORCHUP_STORE_PORT names one, against the server that listens there
// (store_client_interop.py: both of PyTorch's).
#include "rendezvous/net/store/store_client.hpp"

#include <sys/socket.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <future>
#include <thread>

#include "rendezvous/net/io/listen.hpp"
#include "rendezvous/net/store/blocking_connect.hpp"
#include "rendezvous/net/store/store_server.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

/// Our server, on a thread of its own.
class ServerThread {
 public:
  explicit ServerThread(Port port = Port{0}) {
    StoreServerOptions options;
    options.bind = "localhost";
    options.port = port;
    server_ = std::make_unique<StoreServer>(loop_, std::move(options));
    port_ = *server_->listen();
    thread_ = std::thread{[this] { loop_.run(); }};
  }
  ~ServerThread() {
    loop_.stop();
    thread_.join();
  }
  [[nodiscard]] Port port() const { return port_; }
  [[nodiscard]] StoreServerStatus status() {
    std::promise<StoreServerStatus> promise;
    boost::asio::post(loop_, [&] { promise.set_value(server_->status()); });
    return promise.get_future().get();
  }
  /// Returns when so many clients wait for keys or at barriers.
  void until_waiting(std::size_t count) {
    const auto end = std::chrono::steady_clock::now() + 20s;
    while (status().waiting != count && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  }

 private:
  boost::asio::io_context loop_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{loop_.get_executor()};
  std::unique_ptr<StoreServer> server_;
  Port port_{0};
  std::thread thread_;
};

class Fixture {
 public:
  Fixture() {
    if (const char* port = std::getenv("TORCHUP_STORE_PORT")) {
      port_ = Port{static_cast<std::uint16_t>(std::atoi(port))};
    } else {
      server_ = std::make_unique<ServerThread>();
      port_ = server_->port();
    }
  }
  [[nodiscard]] bool ours() const { return server_ != nullptr; }
  /// As ServerThread::until_waiting; PyTorch's server tells nobody, and is asked a little later.
  void until_waiting(std::size_t count) const {
    if (server_) return server_->until_waiting(count);
    std::this_thread::sleep_for(50ms);
  }
  [[nodiscard]] std::unique_ptr<StoreClient> client(Duration timeout = 10s) const {
    auto made = StoreClient::connect({"localhost", port_, timeout});
    INFO((made ? "" : made.error().message()));
    REQUIRE(made.has_value());
    return std::move(*made);
  }

 private:
  std::unique_ptr<ServerThread> server_;
  Port port_{0};
};

bool ok(const Result<>& result) {
  INFO((result ? "" : result.error().message()));
  CHECK(result.has_value());
  return result.has_value();
}

std::string text(const Result<Value>& value) {
  return value ? std::string{value->view()} : "error: " + value.error().message();
}

}  // namespace

TEST_CASE_METHOD(Fixture, "values go there and come back", "[net][store_client]") {
  const auto client = this->client();
  REQUIRE(client->extended() == ours());
  const std::string binary{"\0\xff/", 3}, large(5'000'000, 'x');
  REQUIRE(ok(client->set("c1/a", "1")));
  REQUIRE(ok(client->set("c1/b", binary)));
  REQUIRE(ok(client->set("c1/large", large)));
  REQUIRE(ok(client->set("c1/empty", "")));
  REQUIRE(text(client->get("c1/a")) == "1");
  REQUIRE(text(client->get("c1/large")) == large);
  const std::string keys[] = {"c1/b", "c1/large", "c1/empty"};
  const auto values = client->multi_get(keys);
  REQUIRE(values.has_value());
  REQUIRE((*values)[0].view() == binary);
  REQUIRE((*values)[1].view() == large);
  REQUIRE((*values)[2].size() == 0);
  REQUIRE(ok(client->append("c1/a", "23")));
  REQUIRE(text(client->get("c1/a")) == "123");
}

TEST_CASE_METHOD(Fixture, "multi_set sets all", "[net][store_client]") {
  const auto client = this->client();
  const std::string keys[] = {"c2/a", "c2/b"};
  const std::string large(3'000'000, 'y');
  const std::string_view values[] = {large, "2"};
  REQUIRE(ok(client->multi_set(keys, values)));
  REQUIRE(text(client->get("c2/a")) == large);
  REQUIRE(text(client->get("c2/b")) == "2");
  REQUIRE(client->multi_set(keys, std::span{values}.first(1)).error().code == errc::bad_value);
}

TEST_CASE_METHOD(Fixture, "numbers, checks, deletions, comparisons", "[net][store_client]") {
  const auto client = this->client();
  REQUIRE(*client->add("c3/n", 5) == 5);
  REQUIRE(*client->add("c3/n", -7) == -2);
  REQUIRE(text(client->get("c3/n")) == "-2");
  const std::string both[] = {"c3/n", "c3/absent"};
  REQUIRE(*client->check(std::span{both}.first(1)));
  REQUIRE_FALSE(*client->check(both));
  const auto before = *client->num_keys();
  REQUIRE(*client->delete_key("c3/n"));
  REQUIRE_FALSE(*client->delete_key("c3/n"));
  REQUIRE(*client->num_keys() == before - 1);
  REQUIRE(text(client->compare_set("c3/c", "wrong", "x")) == "wrong");
  REQUIRE(text(client->compare_set("c3/c", "", "x")) == "x");
  REQUIRE(text(client->compare_set("c3/c", "wrong", "y")) == "x");
  REQUIRE(text(client->compare_set("c3/c", "x", "y")) == "y");
}

TEST_CASE_METHOD(Fixture, "a wait ends when the key comes", "[net][store_client]") {
  const auto client = this->client(), other = this->client();
  std::thread setter{[&] {
    until_waiting(1);
    (void)other->set("c4/k", "late");
  }};
  REQUIRE(text(client->get("c4/k")) == "late");
  setter.join();
}

TEST_CASE_METHOD(Fixture, "a time-out names its keys and leaves the connection in step", "[net][store_client]") {
  const auto client = this->client();
  const std::string keys[] = {"c5/a", "c5/b"};
  const auto begin = std::chrono::steady_clock::now();
  const auto waited = client->wait(keys, 120ms);
  REQUIRE(waited.has_error());
  REQUIRE(std::chrono::steady_clock::now() - begin >= 120ms);
  REQUIRE(waited.error().code == boost::system::errc::timed_out);
  REQUIRE(waited.error().context == "wait timeout after 120ms, keys: /c5/a, /c5/b");
  client->set_timeout(50ms);
  REQUIRE(client->get("c5/a").error().context == "wait timeout after 50ms, keys: /c5/a");
  client->set_timeout(5s);
  REQUIRE(*client->add("c5/n", 1) == 1);
}

TEST_CASE_METHOD(Fixture, "an answer that crosses the cancellation counts", "[net][store_client]") {
  const auto client = this->client(), other = this->client();
  int came = 0, timed_out = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string key = "c6/" + std::to_string(i);
    std::thread setter{[&] {
      std::this_thread::sleep_for(700us + i % 30 * 20us);
      (void)other->set(key, "v");
    }};
    client->set_timeout(1ms);
    const auto value = client->get(key);
    setter.join();
    value ? ++came : ++timed_out;
    if (value) REQUIRE(value->view() == "v");
    client->set_timeout(10s);
    const auto next = client->add("c6/n", 1);
    INFO((next ? "in step" : next.error().message()));
    REQUIRE(next.has_value());
    REQUIRE(*next == i + 1);
  }
  REQUIRE(came + timed_out == 300);  // how often which is the machine's affair
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

TEST_CASE_METHOD(Fixture, "queues", "[net][store_client][queue]") {
  const auto client = this->client(), other = this->client();
  REQUIRE(*client->queue_len("c7/q") == 0);
  REQUIRE_FALSE(client->queue_try_pop("c7/q")->has_value());
  REQUIRE(ok(client->queue_push("c7/q", "1")));
  REQUIRE(ok(client->queue_push("c7/q", "")));
  REQUIRE(*client->queue_len("c7/q") == 2);
  REQUIRE(text(client->queue_pop("c7/q")) == "1");
  REQUIRE((*client->queue_try_pop("c7/q"))->size() == 0);
  std::thread pusher{[&] {
    until_waiting(1);
    (void)other->queue_push("c7/q", "late");
  }};
  REQUIRE(text(client->queue_pop("c7/q")) == "late");
  pusher.join();
  client->set_timeout(30ms);
  REQUIRE(client->queue_pop("c7/q").error().context == "wait timeout after 30ms, keys: /c7/q");
}

TEST_CASE_METHOD(Fixture, "barriers", "[net][store_client][barrier]") {
  std::vector<std::thread> others;
  std::atomic<int> passed = 0;
  for (int i = 0; i < 3; ++i)
    others.emplace_back([&, one = std::shared_ptr<StoreClient>{client()}] {
      if (one->barrier("c8/b", 4)) ++passed;
    });
  const auto last = client();
  until_waiting(3);
  REQUIRE(passed == 0);
  REQUIRE(ok(last->barrier("c8/b", 4)));
  for (auto& other : others) other.join();
  REQUIRE(passed == 3);
  REQUIRE(last->barrier("c8/lonely", 2, 30ms).error().context == "barrier timeout after 30ms, key: c8/lonely");
  REQUIRE(*last->add("c8/n", 1) == 1);
}

TEST_CASE_METHOD(Fixture, "all keys are listed but the worker count", "[net][store_client][list_keys]") {
  const auto client = this->client();
  const auto workers = *client->count_worker();
  REQUIRE(*client->count_worker() == workers + 1);
  for (int i = 0; i < 1000; ++i) REQUIRE(ok(client->set("c9/" + std::to_string(i), "v")));
  const auto keys = client->list_keys();
  REQUIRE(keys.has_value());
  REQUIRE(std::count_if(keys->begin(), keys->end(), [](const std::string& key) { return key.starts_with("c9/"); }) ==
          1000);
  REQUIRE(std::count(keys->begin(), keys->end(), "init/") == 0);
}

TEST_CASE_METHOD(Fixture, "threads share a client by turns, a clone has its own connection", "[net][store_client]") {
  const auto client = this->client();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 200; ++n) (void)client->add("c10/n", 1);
    });
  for (auto& thread : threads) thread.join();
  REQUIRE(*client->add("c10/n", 0) == 800);

  client->set_timeout(1ms);  // for keys, not for connecting
  auto clone = client->clone();
  REQUIRE(clone.has_value());
  REQUIRE((*clone)->timeout() == 1ms);
  client->set_timeout(10s);
  std::thread waiter{[&] { (void)client->get("c10/k"); }};
  until_waiting(1);
  REQUIRE(ok((*clone)->set("c10/k", "from the clone")));
  waiter.join();
}

TEST_CASE_METHOD(Fixture, "what the server refuses is an error, not silence", "[net][store_client]") {
  const auto client = this->client();
  REQUIRE(ok(client->set("c11/t", "text")));
  REQUIRE(client->add("c11/t", 1).has_error());
}

// Against our server, or none.

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
