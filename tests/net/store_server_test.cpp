#include "rendezvous/net/store/store_server.hpp"

#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <ctime>
#include <functional>
#include <limits>
#include <thread>

#include "rendezvous/net/io/listen.hpp"
#include "rendezvous/net/store/adaptive_spin.hpp"
#include "tests/support/store_harness.hpp"
#include "tests/support/store_peers.hpp"

using namespace torchup;
using namespace torchup::test;
using namespace std::chrono_literals;

TEST_CASE("the holder of a store server wakes its clients", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.bind = "localhost";
  StoreServer server{loop, std::move(options)};
  const auto port = server.listen();
  REQUIRE(port.has_value());
  const UniqueFd client = connect_to(*port);
  send_all(client, validate + request(Query::wait_get, {"/k"}));
  run_until(loop, [&] { return server.status().waiting == 1; });
  REQUIRE(server.store().set("/k", Value{std::string_view{"v"}}));
  std::string expected;
  put_byte(expected, 0), put_bytes(expected, "v");
  REQUIRE(received(loop, client, expected.size()) == expected);
}

TEST_CASE("requests are counted by what was asked", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.bind = "localhost";
  StoreServer server{loop, std::move(options)};
  const UniqueFd client = connect_to(*server.listen());
  send_all(client, validate + request(Query::get_num_keys) + request(Query::check, {"/k"}) +
                       request(Query::get_num_keys) + request(Query::wait_get, {"/k"}));
  run_until(loop, [&] { return server.status().requests == 4; });
  const StoreRequestCounts counts = server.status().requests_of;
  const auto of = [&](Query query) { return counts[static_cast<std::size_t>(query)]; };
  REQUIRE(of(Query::get_num_keys) == 2);
  REQUIRE(of(Query::wait_get) == 1);
  REQUIRE(of(Query::check) == 1);
  std::uint64_t sum = 0;
  for (const StoreOperation& operation : store_operations) sum += of(operation.query);
  REQUIRE(sum == server.status().requests);
}

TEST_CASE("a connection in another language is handed over unread", "[net][store_server]") {
  boost::asio::io_context loop;
  UniqueFd taken;
  StoreServerOptions options;
  options.bind = "127.0.0.1";
  options.other_language = [&](unsigned char first_byte, UniqueFd& socket) {
    if (first_byte != 'T') return false;
    taken = std::move(socket);
    return true;
  };
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  const UniqueFd guest = connect_to(port), stranger = connect_to(port);
  send_all(guest, "Tell");
  send_all(stranger, "x");
  run_until(loop, [&] { return taken && at_end(stranger); });
  char bytes[16];
  REQUIRE(::recv(taken.get(), bytes, sizeof bytes, 0) == 4);
  REQUIRE(std::string_view(bytes, 4) == "Tell");
  run_until(loop, [&] { return server.status().connections == 0; });
  REQUIRE(server.status().refused == 1);
  REQUIRE_FALSE(at_end(guest));
}

TEST_CASE("a port that is taken is an error that names it", "[net][store_server]") {
  boost::asio::io_context loop;
  const std::string bind = GENERATE(as<std::string>{}, "", "localhost", "127.0.0.1");
  StoreServerOptions options;
  options.bind = bind;
  StoreServer first{loop, std::move(options)};
  const Port port = *first.listen();
  StoreServerOptions again;
  again.bind = bind;
  again.port = port;
  StoreServer second{loop, std::move(again)};
  const auto result = second.listen();
  REQUIRE(result.has_error());
  REQUIRE(result.error().code == boost::system::errc::address_in_use);
  REQUIRE(result.error().message().find(std::to_string(port.value())) != std::string::npos);
}

TEST_CASE("a name is no address to listen on", "[net][store_server]") {
  const auto result = listen_on("node0.example", Port{0}, 90s);
  REQUIRE(result.has_error());
  REQUIRE(result.error().code == errc::bad_value);
}

TEST_CASE("a listening socket can be handed in, and only on its own port", "[net][store_server]") {
  boost::asio::io_context loop;
  auto made = listen_on("127.0.0.1", Port{0}, 90s);
  const Port port = made->port;
  StoreServerOptions options;
  options.listener = std::move(made->sockets.front());
  const bool right = GENERATE(true, false);
  options.port = right ? port : Port{static_cast<std::uint16_t>(port.value() - 1)};
  StoreServer server{loop, std::move(options)};
  const auto result = server.listen();
  REQUIRE(result.has_value() == right);
  if (!right) return;
  const UniqueFd client = connect_to(port);
  send_all(client, validate + request(Query::ping, {}, {}, 7));
  REQUIRE(hex(received(loop, client, 4)) == "07000000");
}

TEST_CASE("the longest silence of a peer is what was asked for, or what the kernel can do", "[net][listen]") {
  const auto [limit, idle_s, interval_s, unanswered_ms] = GENERATE(table<Duration, int, int, int>({
      {1ms, 1, 1, 1000},
      {90s, 45, 15, 90'000},
      {4'294'968s, 32'767, 32'767, std::numeric_limits<int>::max()},  // 32 bits of milliseconds, and some
      {365 * 24h, 32'767, 32'767, std::numeric_limits<int>::max()},
  }));
  const auto listeners = listen_on("127.0.0.1", Port{0}, limit);
  REQUIRE(listeners.has_value());
  const auto value_of = [&](int option) {
    int value = 0;
    socklen_t size = sizeof value;
    ::getsockopt(listeners->sockets.at(0).get(), IPPROTO_TCP, option, &value, &size);
    return value;
  };
  REQUIRE(value_of(TCP_KEEPIDLE) == idle_s);
  REQUIRE(value_of(TCP_KEEPINTVL) == interval_s);
  REQUIRE(value_of(TCP_USER_TIMEOUT) == unanswered_ms);
}

TEST_CASE("a draining server takes nobody new and serves who is there", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServer server{loop, {}};
  const Port port = *server.listen();
  UniqueFd client = connect_to(port);
  send_all(client, validate + request(Query::ping, {}, {}, 7));
  received(loop, client, 4);
  bool drained = false;
  server.drain([&] { drained = true; });
  run_until(loop, [] { return true; });
  UniqueFd late{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port.value());
  REQUIRE(::connect(late.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0);
  send_all(client, request(Query::ping, {}, {}, 8));
  REQUIRE(hex(received(loop, client, 4)) == "08000000");
  REQUIRE_FALSE(drained);
  client.reset();
  run_until(loop, [&] { return drained; });
}

TEST_CASE("a server may go while its loop has work of it", "[net][store_server]") {
  boost::asio::io_context loop;
  auto server = std::make_unique<StoreServer>(loop, StoreServerOptions{});
  const Port port = *server->listen();
  const UniqueFd client = connect_to(port);
  send_all(client, validate + request(Query::wait, {"/k"}));
  run_until(loop, [&] { return server->status().waiting == 1; });
  server->store().set("/k", Value{});
  server.reset();
  run_until(loop, [&] { return at_end(client); });
}

TEST_CASE("who is refused at a tick may have been woken in the same turn", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.connections.request_max = 100ms;  // longer than it takes to see that half of it is there
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  for (int handlers = 0; handlers < 6; ++handlers) {
    UniqueFd client;
    const UniqueFd honest = connect_to(port);
    const auto waits = [&] { return server.status().waiting == 1 && server.status().arriving_bytes > 0; };
    while (!waits()) {  // on a busy machine one may have been refused before that is seen
      client = connect_to(port);
      send_all(client, validate + request(Query::wait, {"/k"}) + "\x01");  // and half a request
      run_until(loop, [&] { return waits() || at_end(client); });
    }
    std::this_thread::sleep_for(300ms);  // the tick is due, and its handler stands behind so many others
    std::function<void(int)> chain = [&](int left) {
      if (left == 0) return (void)server.store().set("/k", Value{});
      boost::asio::post(loop, [&, left] { chain(left - 1); });
    };
    chain(handlers);
    run_until(loop, [&] { return at_end(client); });
    server.store().erase("/k");
    send_all(honest, validate + request(Query::ping, {}, {}, 7));
    REQUIRE(hex(received(loop, honest, 4)) == "07000000");
  }
}

TEST_CASE("a connection that a child process holds too is closed all the same", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServer server{loop, {}};
  const Port port = *server.listen();
  UniqueFd client = connect_to(port);
  send_all(client, validate + request(Query::ping, {}, {}, 7));
  received(loop, client, 4);
  const int fd = client.get();
  const pid_t child = ::fork();  // as between the fork and the exec of a worker
  if (child == 0) {
    ::close(fd);
    ::pause();
    ::_exit(0);
  }
  ::shutdown(fd, SHUT_WR);
  run_until(loop, [&] { return server.status().connections == 0; });
  const linger reset{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  client.reset();  // an event at a socket that only the child has still
  for (int i = 0; i < 3; ++i) {
    const UniqueFd next = connect_to(port);
    send_all(next, validate + request(Query::ping, {}, {}, 8));
    REQUIRE(hex(received(loop, next, 4)) == "08000000");
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

namespace {

/// A spin, and a clock that moves as fast as a case wants.
class SpinCase {
 public:
  bool run(bool result, AdaptiveSpin::Clock::duration poll_time) {
    const auto poll = [&] {
      ++polls;
      now_ += poll_time;
      return result;
    };
    return spin_.run(poll, [&] { return now_; });
  }
  bool succeed() { return run(true, 1us); }
  bool miss() { return run(false, 50us); }
  /// As if somebody else had the CPU between two polls.
  bool lose_cpu() { return run(false, 2 * AdaptiveSpin::taken_away_min); }
  /// Calls in a row that do not poll.
  std::uint64_t paused() {
    std::uint64_t calls = 0;
    while (!succeed()) ++calls;
    return calls;
  }

  int polls = 0;

 private:
  AdaptiveSpin::Clock::time_point now_{};
  AdaptiveSpin spin_{200us};
};

bool one_cpu() { return ::sysconf(_SC_NPROCESSORS_ONLN) < 2; }

}  // namespace

TEST_CASE("polling is tried ever more rarely while it does not pay", "[net][adaptive_spin]") {
  SpinCase spin;
  if (one_cpu()) {
    REQUIRE_FALSE(spin.succeed());
    return;
  }
  for (const std::uint64_t pause :
       std::initializer_list<std::uint64_t>{1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1023}) {
    REQUIRE_FALSE(spin.miss());
    for (std::uint64_t call = 0; call < pause; ++call) REQUIRE_FALSE(spin.succeed());
  }
  REQUIRE(spin.polls == 11 * 5);  // of 50 us each, until 200 us are over
  REQUIRE(spin.succeed());
  REQUIRE_FALSE(spin.miss());
  REQUIRE(spin.paused() == 1);  // one success, and it is tried as often as at first
}

TEST_CASE("polling pauses when somebody else takes the CPU, longer each time", "[net][adaptive_spin]") {
  SpinCase spin;
  if (one_cpu()) {
    REQUIRE_FALSE(spin.succeed());
    return;
  }
  for (std::uint64_t pause = AdaptiveSpin::first_pause; pause <= AdaptiveSpin::pause_max; pause *= 2) {
    REQUIRE_FALSE(spin.lose_cpu());
    REQUIRE(spin.paused() == pause);
  }
  REQUIRE_FALSE(spin.lose_cpu());
  REQUIRE(spin.paused() == AdaptiveSpin::pause_max);
  for (std::uint64_t i = 0; i < AdaptiveSpin::calm_calls; ++i) REQUIRE(spin.succeed());
  REQUIRE_FALSE(spin.lose_cpu());
  REQUIRE(spin.paused() == AdaptiveSpin::first_pause);
}

namespace {

/// Somebody who looks at certain keys, and takes his time.
struct SlowWatcher final : StoreWatcher {
  Taken takes(ClientId, Request&) override {
    if (seen++ == 0 && at_first) at_first();
    const auto end = std::chrono::steady_clock::now() + 1ms;
    while (std::chrono::steady_clock::now() < end) {
    }
    return Taken::no;
  }
  void compared(ClientId, std::string_view) override { ++stored; }
  void gone(ClientId) override {}
  std::function<void()> at_first;
  int seen = 0, stored = 0;
};

}  // namespace

TEST_CASE("a turn ends among the requests of one client", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.bind = "localhost";
  StoreServer server{loop, std::move(options)};
  const auto port = server.listen();
  SlowWatcher watcher;
  server.watch("/slow/", watcher);
  const UniqueFd busy = connect_to(*port), other = connect_to(*port);
  send_all(other, validate);
  run_until(loop, [&] { return server.status().connections == 2; });
  constexpr int asked = 1000;
  std::string requests = validate;
  for (int i = 0; i < asked; ++i) requests += request(Query::set, {"/slow/k"}, {std::to_string(i)});
  requests += request(Query::get, {"/slow/k"});
  std::string ping;
  put_byte(ping, static_cast<std::uint8_t>(Query::ping)), put_nonce(ping, 7);
  watcher.at_first = [&] { send_all(other, ping); };
  send_all(busy, requests);
  REQUIRE(received(loop, other, 4).size() == 4);
  REQUIRE(watcher.seen < asked / 4);
  std::string expected;
  put_bytes(expected, std::to_string(asked - 1));
  REQUIRE(received(loop, busy, expected.size()) == expected);  // all of them, in order
}

TEST_CASE("who watches a key is told of a COMPARE_SET that stored something", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.bind = "localhost";
  StoreServer server{loop, std::move(options)};
  const auto port = server.listen();
  SlowWatcher watcher;
  server.watch("/k", watcher);
  const UniqueFd client = connect_to(*port);
  const auto compare_set = [&](const std::string& expected, const std::string& desired) {
    return request(Query::compare_set, {"/k"}, {expected, desired});
  };
  send_all(client, validate + compare_set("wrong", "1") + compare_set("", "1") + compare_set("", "2") +
                       compare_set("wrong", "2") + compare_set("1", "1"));
  run_until(loop, [&] { return watcher.seen == 5; });
  REQUIRE(watcher.stored == 2);
}

TEST_CASE("a server without descriptors does not spin", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  Listeners listeners = *listen_on("127.0.0.1", Port{0}, 90s);
  options.listener = std::move(listeners.sockets[0]);
  StoreServer server{loop, std::move(options)};
  const UniqueFd client = connect_to(listeners.port);
  send_all(client, validate + request(Query::ping, {}, {}, 7));
  const UniqueFd highest{::dup(client.get())};
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(highest.get()) + 1;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto listening = server.listen();
  const std::clock_t begin = std::clock();
  loop.run_for(500ms);
  const std::clock_t spent = std::clock() - begin;
  ::setrlimit(RLIMIT_NOFILE, &before);
  REQUIRE(listening.has_value());
  REQUIRE(spent < CLOCKS_PER_SEC / 10);
  std::string pong;
  put_nonce(pong, 7);
  REQUIRE(received(loop, client, pong.size()) == pong);
}

TEST_CASE("who gets the last descriptor keeps it while nobody else comes", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.bind = "127.0.0.1";
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  const UniqueFd first = connect_to(port), second = connect_to(port);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(second.get()) + 3;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  run_until(loop, [&] { return server.status().accepted == 2; });
  loop.run_for(50ms);
  send_all(first, validate + request(Query::ping, {}, {}, 7));
  send_all(second, validate + request(Query::ping, {}, {}, 7));
  std::string pong;
  put_nonce(pong, 7);
  const bool served = received(loop, first, pong.size()) == pong && received(loop, second, pong.size()) == pong;
  ::setrlimit(RLIMIT_NOFILE, &before);
  REQUIRE(served);
}
