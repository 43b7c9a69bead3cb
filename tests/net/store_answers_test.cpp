// What answers on their way to clients may cost.
#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <set>

#include "rendezvous/net/store/reply_queue.hpp"
#include "rendezvous/net/store/store_server.hpp"
#include "tests/support/store_harness.hpp"
#include "tests/support/store_peers.hpp"

using namespace torchup;
using namespace torchup::test;
using namespace std::chrono_literals;

TEST_CASE("an answer is given up to its limit, and one past it closes the connection", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.connections.reply_bytes_max = 1000;
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  server.store().set("/k", Value{std::string_view{std::string(92, 'x')}});  // 100 bytes in an answer
  const UniqueFd client = connect_to(port), other = connect_to(port);
  send_all(client, validate + request(Query::multi_get, std::vector<std::string>(10, "/k")));
  REQUIRE(received(loop, client, 1000).size() == 1000);
  send_all(client, request(Query::multi_get, std::vector<std::string>(11, "/k")));
  run_until(loop, [&] { return at_end(client); });
  REQUIRE(server.status().refused == 1);
  send_all(other, validate + request(Query::wait_get, std::vector<std::string>(11, "/late")));
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
  std::string requests = validate;
  for (int i = 0; i < 40; ++i) requests += request(Query::get, {"/v"}) + request(Query::ping, {}, {}, i);
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
  send_all(slow, validate + request(Query::get, {"/v"}));
  send_all(honest, validate + request(Query::get, {"/v"}));
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
    send_all(deaf.back(), validate + request(Query::get, {"/v"}));
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

TEST_CASE("who holds a value that the store has given up goes before who holds less, alone or not",
          "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.connections.unread_bytes_max = 60'000'000;
  options.connections.reply_bytes_max = 200'000'000;
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  server.store().set("/k", Value{std::string_view{std::string(1000, 'k')}});
  const auto ask = [&](const std::vector<std::string>& names) {
    UniqueFd client = connect_to(port);
    const auto asked = server.status().requests;
    send_all(client, validate + request(Query::multi_get, names));
    run_until(loop, [&] { return server.status().requests > asked; });
    return client;
  };
  std::vector<UniqueFd> greedy;
  const auto ask_twice = [&](char fill) {
    server.store().set("/v", Value{std::string_view{std::string(50'000'000, fill)}});
    for (int holder = 0; holder < 2; ++holder) greedy.push_back(ask({"/v", "/v"}));
  };
  ask_twice('a');
  server.store().erase("/v");
  ask_twice('b');
  // Last, as time counts too: more than the kernel takes.
  const UniqueFd modest = ask(std::vector<std::string>(9000, "/k"));
  server.store().erase("/v");
  run_until(loop, [&] { return server.status().refused == 2; });
  REQUIRE(received(loop, modest, 9000 * 1008).size() == 9000 * 1008);
}

TEST_CASE("many who are woken at once cost no more than the limit, and who got little gets it", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.connections.unread_bytes_max = 30'000'000;
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  server.store().set("/k", Value{std::string_view{std::string(1000, 'k')}});
  std::vector<std::string> names(20'000, "/k");
  names.push_back("/late");
  std::vector<UniqueFd> greedy;
  const UniqueFd first = connect_to(port);
  send_all(first, validate + request(Query::wait_get, {"/late"}));
  for (std::size_t i = 0; i < 10; ++i) {
    greedy.push_back(connect_to(port));
    std::string_view rest;
    const std::string all = validate + request(Query::wait_get, names);
    rest = all;
    run_until(loop, [&] {
      const ssize_t sent = ::send(greedy.back().get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent > 0) rest.remove_prefix(static_cast<std::size_t>(sent));
      return server.status().waiting == i + 2;
    });
  }
  const UniqueFd last = connect_to(port);
  send_all(last, validate + request(Query::wait_get, {"/late"}));
  run_until(loop, [&] { return server.status().waiting == 12; });
  server.store().set("/late", Value{std::string_view{"x"}});
  REQUIRE(received(loop, first, 10).size() == 10);
  REQUIRE(received(loop, last, 10).size() == 10);
  REQUIRE(server.status().refused >= 8);
  REQUIRE(server.status().unread_bytes <= 30'000'000);
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
    queue.share(shared, true, all);
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
  const Value stored{std::string(5000, 'x')};
  first.share(stored, true, all);
  second.share(stored, true, all);
  REQUIRE(all.bytes() == 5000);
  REQUIRE(all.bytes_held_by_queues_alone() == 0);
  REQUIRE(first.held_bytes() < 1000);
  all.released(stored);
  REQUIRE(all.bytes_held_by_queues_alone() == 5000);
  REQUIRE(first.held_bytes() - first.own_bytes() == 2500);  // each has its part
  first.pop(5000, all);
  REQUIRE(all.bytes() == 5000);
  REQUIRE(second.held_bytes() - second.own_bytes() == 5000);
  second.clear(all);
  REQUIRE(all.bytes() == 0);
  REQUIRE(all.bytes_held_by_queues_alone() == 0);
  REQUIRE(second.empty());
}

TEST_CASE("a value that was never in the store takes up memory at once", "[net][reply_queue]") {
  SharedValues all;
  ReplyQueue queue;
  queue.share(Value{std::string(5000, 'x')}, false, all);
  REQUIRE(all.bytes_held_by_queues_alone() == 5000);
  queue.clear(all);
  REQUIRE(all.bytes_held_by_queues_alone() == 0);
}

TEST_CASE("a value that grew in the store takes up what it has grown to", "[net][reply_queue]") {
  SharedValues all;
  ReplyQueue early, late;
  GrowingValue value{Value{std::string(3000, 'x')}};
  value.append("y");  // a block twice as large
  early.share(value.value(), true, all);
  value.append(std::string(2000, 'y'));  // into the same
  SECTION("whoever has seen it since") {
    late.share(value.value(), true, all);
    REQUIRE(all.bytes() == 5001);
    late.clear(all);
  }
  all.released(value.value());
  REQUIRE(all.bytes_held_by_queues_alone() == 5001);
  REQUIRE(early.held_bytes() >= 5001);
  early.clear(all);
  REQUIRE(all.bytes() == 0);
}

TEST_CASE("a queue that has been sent costs nothing, however many values it had", "[net][reply_queue]") {
  SharedValues all;
  ReplyQueue queue;
  const Value value{std::string(ReplyQueue::share_min, 'x')};
  for (int i = 0; i < 10'000; ++i) queue.buffer() += "head", queue.share(value, true, all);
  REQUIRE(queue.own_bytes() > 400'000);
  queue.pop(queue.size(), all);
  REQUIRE(queue.empty());
  REQUIRE(queue.own_bytes() == 0);
  REQUIRE(queue.buffer().capacity() < 1000);
}

TEST_CASE("a queue that was long gives back what has been sent of it", "[net][reply_queue]") {
  SharedValues all;
  ReplyQueue queue;
  queue.buffer().assign(8'000'000, 'x');
  queue.pop(7'999'000, all);
  REQUIRE(queue.size() == 1000);
  REQUIRE(queue.buffer().capacity() < 2000);
  queue.clear(all);
}

TEST_CASE("requests that take long leave the loop to others, whoever else is ready", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.bind = "127.0.0.1";
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  const std::string value(1023, 'x');
  REQUIRE(server.store().set("/v", Value{std::string_view{value}}));
  const std::string request = test::request(Query::multi_get, std::vector<std::string>(8'000, "/v"));
  constexpr std::size_t clients = 12;
  std::vector<UniqueFd> crowd;
  for (std::size_t i = 0; i < clients; ++i) {
    crowd.push_back(connect_to(port));
    std::string first = validate + request.substr(0, request.size() - 1);
    run_until(loop, [&] {
      const ssize_t sent = ::send(crowd.back().get(), first.data(), first.size(), MSG_NOSIGNAL);
      if (sent > 0) first.erase(0, static_cast<std::size_t>(sent));
      return first.empty();
    });
  }
  run_until(loop, [&] { return server.status().arriving_bytes >= clients * 8'000; });
  for (const UniqueFd& client : crowd) send_all(client, request.substr(request.size() - 1));
  std::uint64_t before = server.status().requests, most = 0;
  std::function<void()> look = [&] {
    const std::uint64_t now = server.status().requests;
    most = std::max(most, now - std::exchange(before, now));
    if (now < clients) boost::asio::post(loop, look);
  };
  boost::asio::post(loop, look);
  run_until(loop, [&] { return before == clients; });
  REQUIRE(most <= 2);
}

TEST_CASE("who asks for all of many keys waits for those who ask for little", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.bind = "127.0.0.1";
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  constexpr std::size_t keys = 30'000, clients = 12;
  for (std::size_t i = 0; i < keys; ++i) REQUIRE(server.store().set(fmt::format("/{:08}", i), Value{}));
  std::vector<UniqueFd> crowd;
  for (std::size_t i = 0; i <= clients; ++i) {
    crowd.push_back(connect_to(port));
    send_all(crowd.back(), validate);
  }
  run_until(loop, [&] { return server.status().connections == clients + 1; });
  for (std::size_t i = 0; i < clients; ++i) send_all(crowd[i], request(Query::list_keys) + request(Query::list_keys));
  send_all(crowd.back(), request(Query::ping, {}, {}, 7));
  char pong[4];
  while (::recv(crowd.back().get(), pong, sizeof pong, 0) < 0) loop.run_one();
  REQUIRE(server.status().requests <= 2);  // one list at most
  for (std::size_t i = 0; i < clients; ++i)
    REQUIRE(received(loop, crowd[i], 2 * (8 + keys * 17)).size() == 2 * (8 + keys * 17));
  REQUIRE(server.status().requests == 2 * clients + 1);
}

TEST_CASE("a list of very many keys is made in steps, and others are served in between", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.bind = "127.0.0.1";
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  constexpr std::size_t keys = 300'000;
  for (std::size_t i = 0; i < keys; ++i) REQUIRE(server.store().set(fmt::format("/{:07}", i), Value{}));
  const UniqueFd first = connect_to(port), second = connect_to(port), other = connect_to(port);
  for (const UniqueFd* client : {&first, &second, &other}) send_all(*client, validate);
  send_all(first, request(Query::list_keys));
  send_all(second, request(Query::list_keys));
  run_until(loop, [&] { return server.status().arriving_bytes == 2; });  // both wait
  send_all(other, request(Query::ping, {}, {}, 7));
  std::string pong;
  put_nonce(pong, 7);
  REQUIRE(received(loop, other, pong.size()) == pong);
  char byte = 0;
  REQUIRE(::recv(first.get(), &byte, 1, MSG_PEEK) < 0);
  const std::size_t size = 8 + keys * (8 + 8);
  std::string list = received(loop, first, size), count;
  put_number(count, keys);
  REQUIRE(list.size() == size);
  REQUIRE(list.starts_with(count));
  std::set<std::string> seen;
  for (std::size_t at = 8; at < size; at += 16) seen.insert(list.substr(at + 8, 8));
  REQUIRE(seen.size() == keys);
  REQUIRE(received(loop, second, size).size() == size);
  REQUIRE(server.status().arriving_bytes == 0);
}

TEST_CASE("who goes while his list is made leaves the line to others", "[net][store_server]") {
  boost::asio::io_context loop;
  StoreServerOptions options;
  options.bind = "127.0.0.1";
  StoreServer server{loop, std::move(options)};
  const Port port = *server.listen();
  constexpr std::size_t keys = 100'000;
  for (std::size_t i = 0; i < keys; ++i) REQUIRE(server.store().set(fmt::format("/{:07}", i), Value{}));
  std::optional<UniqueFd> first = connect_to(port);
  const UniqueFd second = connect_to(port);
  send_all(*first, validate + request(Query::list_keys));
  send_all(second, validate + request(Query::list_keys) + request(Query::ping, {}, {}, 7));
  run_until(loop, [&] { return server.status().arriving_bytes >= 2; });
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(first->get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  first.reset();
  const std::size_t size = 8 + keys * (8 + 8) + 4;
  REQUIRE(received(loop, second, size).size() == size);
}
