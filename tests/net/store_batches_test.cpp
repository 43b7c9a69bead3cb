// A store server whose answers leave by one call for many clients, or one by one.
#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <cerrno>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/net/store/store_server.hpp"
#include "tests/support/io_uring_calls.hpp"
#include "tests/support/store_harness.hpp"
#include "tests/support/store_peers.hpp"
#include "tests/support/variable.hpp"

using namespace torchup;
using namespace torchup::test;

namespace {

constexpr const char* batch_min_variable = "TORCHUP_SEND_BATCH_MIN";

/// What one client asks in one go, and what it is answered.
struct Talk {
  std::string asked, answered;

  Talk& get(const std::string& key, std::string_view value) {
    asked += request(Query::get, {key});
    put_bytes(answered, value);
    return *this;
  }
  Talk& set_and_get(const std::string& key, const std::string& value) {
    asked += request(Query::set, {key}, {value});
    return get(key, value);
  }
  Talk& ping(std::uint32_t nonce) {
    asked += request(Query::ping, {}, {}, nonce);
    put_nonce(answered, nonce);
    return *this;
  }
  Talk& many_gets(const std::string& key, const std::string& value, std::size_t count) {
    asked += request(Query::multi_get, std::vector<std::string>(count, key));
    for (std::size_t i = 0; i < count; ++i) put_bytes(answered, value);
    return *this;
  }
};

void reset(UniqueFd& client) {
  const linger hard{1, 0};
  ::setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  client.reset();
}

}  // namespace

TEST_CASE("each of many clients gets every byte in order, however the answers leave", "[net][store_batches]") {
  struct Way {
    const char* name;
    const char* batch_min;
    IoUringCalls calls;
    bool batches;
  };
  const Way way =
      GENERATE(values<Way>({{"in batches", nullptr, {}, true},
                            {"in batches, be they of one", "1", {}, true},
                            {"in batches of which the kernel takes seven", nullptr, {.taken_max = 7}, true},
                            {"in batches cut off after seven", nullptr, {.taken_max = 7, .second_error = ENOMEM}, true},
                            {"one by one", "0", {}, false},
                            {"one by one, for want of io_uring", nullptr, {.setup_error = EPERM}, false}}));
  CAPTURE(way.name);
  if (way.batches) need_io_uring();
  const Variable min{batch_min_variable, way.batch_min};
  boost::asio::io_context loop;
  std::vector<std::string> lines;
  StoreServerOptions options;
  options.log = [&](const LogLine& line) { lines.push_back(line.text); };
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  const std::string large(5000, 'l'), small(900, 's');
  server.store().set("/large", Value{std::string_view{large}});
  server.store().set("/small", Value{std::string_view{small}});
  std::vector<UniqueFd> clients;
  for (std::size_t i = 0; i < 700; ++i) clients.push_back(connect_to(port));
  std::optional<ChangedIoUring> changed;
  changed.emplace(way.calls);
  for (std::uint32_t round = 0; round < 3; ++round) {
    std::vector<Talk> talks(clients.size());
    for (std::uint32_t i = 0; i < clients.size(); ++i) {
      Talk& talk = talks[i];
      if (round == 0) talk.asked = validate;
      talk.ping(1000 * round + i).set_and_get(fmt::format("/{}", i), fmt::format("value {} of {}", round, i));
      if (i % 5 == 1) talk.get("/large", large).ping(i);
      if (round == 1 && i % 250 == 2)
        talk.many_gets("/small", small, 10'000).ping(i);  // more than lies unread in any socket
      send_all(clients[i], talk.asked);
    }
    for (std::size_t i = 0; i < clients.size(); ++i)
      REQUIRE(received(loop, clients[i], talks[i].answered.size()) == talks[i].answered);
  }
  CHECK((server.status().batches > 0) == way.batches);
  CHECK((io_uring_calls.entered > 0) == way.batches);
  CHECK(server.status().unread_bytes == 0);
  CHECK(server.status().connections == clients.size());
  if (way.batches) {
    CHECK(lines.empty());
  } else {
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find(way.batch_min ? "TORCHUP_SEND_BATCH_MIN is 0" : "io_uring_setup: ") != std::string::npos);
  }
}

TEST_CASE("who asks for batches of no number of clients hears of it, and has them as ever", "[net][store_batches]") {
  need_io_uring();
  const Variable min{batch_min_variable, "a few"};
  boost::asio::io_context loop;
  std::vector<LogLine> lines;
  StoreServerOptions options;
  options.log = [&](const LogLine& line) { lines.push_back(line); };
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].level == LogLevel::warning);
  CHECK(lines[0].text == "TORCHUP_SEND_BATCH_MIN is \"a few\": a number of clients is wanted, 0 for no batches");
  std::vector<UniqueFd> clients;
  for (std::uint32_t i = 0; i < 40; ++i) {
    clients.push_back(connect_to(port));
    send_all(clients.back(), validate + request(Query::ping, {}, {}, i));
  }
  for (const UniqueFd& client : clients) REQUIRE(received(loop, client, 4).size() == 4);
  CHECK(server.status().batches > 0);
}

TEST_CASE("those who are gone do not keep the others of their batch from their answers", "[net][store_batches]") {
  need_io_uring();
  const Variable min{batch_min_variable, GENERATE("1", "0")};
  boost::asio::io_context loop;
  StoreServer server{loop, {}};
  const Port port = *server.listen();
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 60; ++i) {
    clients.push_back(connect_to(port));
    send_all(clients.back(), validate + request(Query::wait_get, {"/late"}));
  }
  run_until(loop, [&] { return server.status().waiting == 60; });
  for (std::size_t i = 0; i < clients.size(); i += 3) reset(clients[i]);
  server.store().set("/late", Value{std::string_view{"here"}});
  std::string expected;
  put_byte(expected, 0), put_bytes(expected, "here");
  for (std::size_t i = 0; i < clients.size(); ++i)
    if (i % 3 != 0) REQUIRE(received(loop, clients[i], expected.size()) == expected);
  run_until(loop, [&] { return server.status().connections == 40; });
}

TEST_CASE("few clients cost no batch, and many make one", "[net][store_batches]") {
  need_io_uring();
  const Variable min{batch_min_variable, nullptr};
  const ChangedIoUring counted{{}};
  boost::asio::io_context loop;
  StoreServer server{loop, {}};
  const Port port = *server.listen();
  std::vector<UniqueFd> clients;
  const auto all_ping = [&](std::size_t count) {
    for (; clients.size() < count; send_all(clients.back(), validate)) clients.push_back(connect_to(port));
    run_until(loop, [&] { return server.status().connections == count; });
    for (const UniqueFd& client : clients) send_all(client, request(Query::ping, {}, {}, 7));
    for (const UniqueFd& client : clients) REQUIRE(received(loop, client, 4).size() == 4);
  };
  all_ping(15);
  CHECK(server.status().batches == 0);
  CHECK(io_uring_calls.entered == 0);
  all_ping(200);
  CHECK(server.status().batches > 0);
  const auto entered = io_uring_calls.entered;
  CHECK(entered < 50);
  all_ping(200);
  CHECK(io_uring_calls.entered > entered);
}

TEST_CASE("who gets room with a batch is served on", "[net][store_batches]") {
  need_io_uring();
  const Variable min{batch_min_variable, GENERATE("1", "0")};
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.connections.reply_pause_bytes = 1000;
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  server.store().set("/k", Value{std::string_view{std::string(900, 'k')}});
  const UniqueFd first = connect_to(port), second = connect_to(port), third = connect_to(port);
  send_all(first, validate + request(Query::wait_get, {"/late"}));
  send_all(second, validate + request(Query::wait_get, {"/late"}));
  send_all(third, validate + request(Query::wait_get, {"/go"}));
  run_until(loop, [&] { return server.status().waiting == 3; });
  // The first is answered more than it reads; what it asks for then stays unserved.
  std::string expected;
  while (server.status().unread_bytes <= 1000) {
    const Talk more = Talk{}.many_gets("/k", std::string(900, 'k'), 100);
    const auto requests = server.status().requests;
    send_all(first, more.asked);
    expected += more.answered;
    run_until(loop, [&] { return server.status().requests > requests; });
  }
  send_all(first, request(Query::set, {"/go"}, {"g"}));
  loop.restart();
  loop.poll();
  REQUIRE_FALSE(server.store().find("/go"));
  // It reads while the server does other things, and there is room for all.
  std::string got;
  std::vector<char> buffer(1 << 20);
  for (ssize_t count; (count = ::recv(first.get(), buffer.data(), buffer.size(), 0)) > 0;)
    got.append(buffer.data(), static_cast<std::size_t>(count));
  server.store().set("/late", Value{std::string_view{"here"}});
  std::string late, go;
  put_byte(late, 0), put_bytes(late, "here");
  put_byte(go, 0), put_bytes(go, "g");
  expected += late;
  CHECK(received(loop, second, late.size()) == late);
  CHECK(received(loop, third, go.size()) == go);
  got += received(loop, first, expected.size() - got.size());
  CHECK((got == expected));
}
