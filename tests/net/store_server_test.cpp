#include "rendezvous/net/store/store_server.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <thread>

#include "rendezvous/net/io/listen.hpp"
#include "rendezvous/net/store/adaptive_spin.hpp"
#include "rendezvous/net/store/reply_queue.hpp"
#include "tests/support/store_harness.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

UniqueFd connect_to(Port port) {
  UniqueFd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port.value());
  REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  return socket;
}

void send_all(const UniqueFd& socket, const std::string& bytes) {
  REQUIRE(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

/// Runs `loop` until `condition` holds; fails after ten seconds.
template <class Condition>
void run_until(boost::asio::io_context& loop, Condition condition) {
  const auto end = std::chrono::steady_clock::now() + 10s;
  loop.restart();
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    loop.run_for(1ms);
    loop.restart();
  }
}

std::string received(boost::asio::io_context& loop, const UniqueFd& socket, std::size_t size) {
  std::string bytes;
  run_until(loop, [&] {
    char buffer[65536];
    if (const ssize_t got = ::recv(socket.get(), buffer, sizeof buffer, 0); got > 0)
      bytes.append(buffer, static_cast<std::size_t>(got));
    return bytes.size() >= size;
  });
  return bytes;
}

bool at_end(const UniqueFd& socket) {
  char byte = 0;
  return ::recv(socket.get(), &byte, 1, 0) == 0;
}

}  // namespace

TEST_CASE("the holder of a store server wakes its clients", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.bind = "localhost";
  StoreServer server{loop, std::move(options)};
  const auto port = server.listen();
  REQUIRE(port.has_value());
  const UniqueFd client = connect_to(*port);
  send_all(client, test::validate + test::request(Query::wait_get, {"/k"}));
  run_until(loop, [&] { return server.status().waiting == 1; });
  REQUIRE(server.store().set("/k", Value{std::string_view{"v"}}));
  std::string expected;
  put_byte(expected, 0), put_bytes(expected, "v");
  REQUIRE(received(loop, client, expected.size()) == expected);
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
  send_all(client, test::validate + test::request(Query::ping, {}, {}, 7));
  REQUIRE(test::hex(received(loop, client, 4)) == "07000000");
}

TEST_CASE("a draining server takes nobody new and serves who is there", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServer server{loop, {}};
  const Port port = *server.listen();
  UniqueFd client = connect_to(port);
  send_all(client, test::validate + test::request(Query::ping, {}, {}, 7));
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
  send_all(client, test::request(Query::ping, {}, {}, 8));
  REQUIRE(test::hex(received(loop, client, 4)) == "08000000");
  REQUIRE_FALSE(drained);
  client.reset();
  run_until(loop, [&] { return drained; });
}

TEST_CASE("a server may go while its loop has work of it", "[net][store_server]") {
  boost::asio::io_context loop;
  auto server = std::make_unique<StoreServer>(loop, StoreServerOptions{});
  const Port port = *server->listen();
  const UniqueFd client = connect_to(port);
  send_all(client, test::validate + test::request(Query::wait, {"/k"}));
  run_until(loop, [&] { return server->status().waiting == 1; });
  server->store().set("/k", Value{});
  server.reset();
  run_until(loop, [&] { return at_end(client); });
}

TEST_CASE("an answer is given up to its limit, and one past it closes the connection", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.connections.reply_bytes_max = 1000;
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  server.store().set("/k", Value{std::string_view{std::string(92, 'x')}});  // 100 bytes in an answer
  const UniqueFd client = connect_to(port), other = connect_to(port);
  send_all(client, test::validate + test::request(Query::multi_get, std::vector<std::string>(10, "/k")));
  REQUIRE(received(loop, client, 1000).size() == 1000);
  send_all(client, test::request(Query::multi_get, std::vector<std::string>(11, "/k")));
  run_until(loop, [&] { return at_end(client); });
  REQUIRE(server.status().refused == 1);
  send_all(other, test::validate + test::request(Query::wait_get, std::vector<std::string>(11, "/late")));
  run_until(loop, [&] { return server.status().waiting == 1; });
  server.store().set("/late", Value{std::string_view{std::string(92, 'x')}});  // by somebody else's doing
  run_until(loop, [&] { return at_end(other); });
  REQUIRE(server.status().refused == 2);
  REQUIRE(server.status().unread_bytes == 0);
}

TEST_CASE("requests whose answers find no room wait for it, whatever has come with them", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.connections.reply_pause_bytes = 1000;
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  server.store().set("/v", Value{std::string_view{std::string(2'000'000, 'v')}});
  const UniqueFd client = connect_to(port);
  std::string requests = test::validate;
  for (int i = 0; i < 40; ++i) requests += test::request(Query::get, {"/v"}) + test::request(Query::ping, {}, {}, i);
  send_all(client, requests);
  run_until(loop, [&] { return server.status().requests > 2; });
  for (int turn = 0; turn < 20; ++turn) {
    loop.restart();
    loop.poll();
  }
  REQUIRE(server.status().requests < 20);
  REQUIRE(server.status().arriving_bytes > 0);
  const std::string answers = received(loop, client, 40 * (8 + 2'000'000 + 4));
  REQUIRE(answers.size() == 40 * (8 + 2'000'000 + 4));
  for (int i = 0; i < 40; ++i)
    REQUIRE(static_cast<unsigned char>(answers[static_cast<std::size_t>(i + 1) * 2'000'012 - 4]) == i);
  REQUIRE(server.status().arriving_bytes == 0);
  REQUIRE(server.status().unread_bytes == 0);
}

TEST_CASE("much that lies unread goes after a time, however slowly it is read", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.connections.large_reply_bytes = 1'000'000;
  options.connections.large_reply_max = 3s;
  options.connections.stalled_max = 1h;
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  server.store().set("/v", Value{std::string_view{std::string(12'000'000, 'v')}});
  const UniqueFd slow = connect_to(port), honest = connect_to(port);
  const int small = 4096;
  ::setsockopt(slow.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  send_all(slow, test::validate + test::request(Query::get, {"/v"}));
  send_all(honest, test::validate + test::request(Query::get, {"/v"}));
  REQUIRE(received(loop, honest, 12'000'008).size() == 12'000'008);
  run_until(loop, [&] {
    char buffer[100];
    (void)!::recv(slow.get(), buffer, sizeof buffer, 0);
    return server.status().refused == 1;
  });
  REQUIRE(server.status().connections == 1);
}

TEST_CASE("of answers that nobody reads, the largest and oldest go", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.connections.unread_bytes_max = 30'000'000;
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  std::vector<UniqueFd> deaf;
  const auto ask = [&] {
    server.store().set("/v", Value{std::string_view{std::string(20'000'000, 'v')}});
    deaf.push_back(connect_to(port));
    send_all(deaf.back(), test::validate + test::request(Query::get, {"/v"}));
    const auto asked = server.status().requests;
    run_until(loop, [&] { return server.status().requests > asked; });
    server.store().erase("/v");
  };
  ask();
  ask();
  ask();
  run_until(loop, [&] { return server.status().refused == 2; });
  REQUIRE(server.status().unread_bytes <= 30'000'000);
  REQUIRE(received(loop, deaf[2], 20'000'008).size() == 20'000'008);
}

TEST_CASE("who is refused at a tick may have been woken in the same turn", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.connections.request_max = 1ms;
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  for (int handlers = 0; handlers < 6; ++handlers) {
    const UniqueFd client = connect_to(port), honest = connect_to(port);
    send_all(client, test::validate + test::request(Query::wait, {"/k"}) + "\x01");  // and half a request
    run_until(loop, [&] { return server.status().waiting == 1 && server.status().arriving_bytes > 0; });
    std::this_thread::sleep_for(300ms);  // the tick is due, and its handler stands behind so many others
    std::function<void(int)> chain = [&](int left) {
      if (left == 0) return (void)server.store().set("/k", Value{});
      boost::asio::post(loop, [&, left] { chain(left - 1); });
    };
    chain(handlers);
    run_until(loop, [&] { return at_end(client); });
    server.store().erase("/k");
    send_all(honest, test::validate + test::request(Query::ping, {}, {}, 7));
    REQUIRE(test::hex(received(loop, honest, 4)) == "07000000");
  }
}

TEST_CASE("a connection that a child process holds too is closed all the same", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServer server{loop, {}};
  const Port port = *server.listen();
  UniqueFd client = connect_to(port);
  send_all(client, test::validate + test::request(Query::ping, {}, {}, 7));
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
    send_all(next, test::validate + test::request(Query::ping, {}, {}, 8));
    REQUIRE(test::hex(received(loop, next, 4)) == "08000000");
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_CASE("replies leave in order, whatever the kernel takes at a time", "[net][reply_queue]") {
  ReplyQueue queue;
  SharedValues all;
  std::string expected;
  const auto text = [&](std::string_view bytes) {
    queue.buffer() += bytes;
    expected += bytes;
  };
  const auto value = [&](char fill, std::size_t size) {
    const Value shared{std::string(size, fill)};
    queue.share(shared, all);
    expected += shared.view();
  };
  const auto step = GENERATE(values<std::size_t>({1, 2, 999, 1024, 5000, 100'000}));
  std::string sent;
  for (int round = 0; round < 3; ++round) {
    value('a', 2000), text("one"), value('b', 1500), value('c', 1024), text("two");
    while (queue.size() > (round < 2 ? 100u : 0u)) {
      iovec pieces[3];
      const std::size_t count = queue.front(pieces);
      REQUIRE(count > 0);
      std::string front;
      for (std::size_t i = 0; i < count; ++i)
        front.append(static_cast<const char*>(pieces[i].iov_base), pieces[i].iov_len);
      front.resize(std::min(front.size(), step));
      sent += front;
      queue.pop(front.size(), all);
    }
  }
  REQUIRE(sent == expected);
  REQUIRE(queue.empty());
  REQUIRE(all.bytes() == 0);
}

TEST_CASE("a value on its way to many takes up memory once, and none while the store has it", "[net][reply_queue]") {
  SharedValues all;
  ReplyQueue first, second;
  std::optional<Value> stored{std::string(5000, 'x')};
  first.share(*stored, all);
  second.share(*stored, all);
  REQUIRE(all.bytes() == 5000);
  REQUIRE(all.bytes_held_by_queues_alone() == 0);
  REQUIRE(first.bytes_held_alone() < 1000);
  stored.reset();
  REQUIRE(all.bytes_held_by_queues_alone() == 5000);
  first.pop(5000, all);
  REQUIRE(all.bytes() == 5000);
  REQUIRE(second.bytes_held_alone() >= 5000);
  second.clear(all);
  REQUIRE(all.bytes() == 0);
  REQUIRE(second.empty());
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
  send_all(other, test::validate);
  run_until(loop, [&] { return server.status().connections == 2; });
  constexpr int asked = 1000;
  std::string requests = test::validate;
  for (int i = 0; i < asked; ++i) requests += test::request(Query::set, {"/slow/k"}, {std::to_string(i)});
  requests += test::request(Query::get, {"/slow/k"});
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
    return test::request(Query::compare_set, {"/k"}, {expected, desired});
  };
  send_all(client, test::validate + compare_set("wrong", "1") + compare_set("", "1") + compare_set("", "2") +
                       compare_set("wrong", "2") + compare_set("1", "1"));
  run_until(loop, [&] { return watcher.seen == 5; });
  REQUIRE(watcher.stored == 2);
}
