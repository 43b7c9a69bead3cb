#include "rendezvous/net/io/frame_socket.hpp"

#include <malloc.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include "rendezvous/net/io/listen.hpp"
#include "tests/support/store_peers.hpp"

using namespace torchup;
using namespace torchup::test;
using namespace std::chrono_literals;
using boost::asio::ip::tcp;

namespace {

std::size_t allocated_bytes() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

/// A socket of each side.
struct Pair {
  Pair() {
    client = connect_to(listeners.port);
    UniqueFd accepted;
    while (!accepted) accepted.reset(::accept(listeners.sockets[0].get(), nullptr, nullptr));
    const int small = 8192;  // what the kernel keeps is not what we keep
    ::setsockopt(accepted.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    ::setsockopt(client.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    tcp::socket connected{loop};
    connected.assign(tcp::v4(), accepted.get());
    [[maybe_unused]] const int owned = accepted.release();
    server = std::make_shared<FrameSocket>(std::move(connected));
  }
  ~Pair() { server->close(); }

  boost::asio::io_context loop;
  Listeners listeners = *listen_on("127.0.0.1", Port{0}, 90s);
  UniqueFd client;
  std::shared_ptr<FrameSocket> server;
};

}  // namespace

TEST_CASE("what a long frame took is given back, whether the next one has begun or not", "[net][frame_socket]") {
  const std::size_t of_the_next = GENERATE(0u, 10u, 100u);
  Pair pair;
  constexpr std::size_t frame = 8'000'000;
  bool taken = false;
  pair.server->start(
      [&](std::string_view& input) {
        if (input.size() >= frame) input.remove_prefix(frame), taken = true;
        return FrameSocket::Rest::more;
      },
      [](const boost::system::error_code&) {});
  const auto before = allocated_bytes();
  std::string words(frame + of_the_next, 'x');
  std::string_view rest = words;
  run_until(pair.loop, [&] {
    const ssize_t sent = ::send(pair.client.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent > 0) rest.remove_prefix(static_cast<std::size_t>(sent));
    return taken;
  });
  std::string{}.swap(words);
  REQUIRE(allocated_bytes() < before + 1'000'000);
}

TEST_CASE("what was read of long words is given back while the rest lies unread", "[net][frame_socket]") {
  Pair pair;
  const auto memory = std::make_shared<FrameMemory>(FrameMemory{std::size_t{1} << 30, [] {}});
  pair.server->count_in(memory);
  pair.server->start([](std::string_view&) { return FrameSocket::Rest::more; },
                     [](const boost::system::error_code&) {});
  const auto before = allocated_bytes();
  std::size_t written = 0, read = 0;
  for (; written < 1'900'000; written += 100'000) pair.server->write(std::string(100'000, 'x'));
  REQUIRE(memory->bytes > 1'000'000);
  run_until(pair.loop, [&] {
    char buffer[10'000];
    const ssize_t got = ::recv(pair.client.get(), buffer, sizeof buffer, 0);
    if (got > 0) read += static_cast<std::size_t>(got);
    return read >= written - 300'000;
  });
  pair.server->write("x");
  REQUIRE(memory->bytes > 0);
  REQUIRE(memory->bytes < 400'000);
  REQUIRE(allocated_bytes() < before + 800'000);
}

namespace {

/// What a socket has taken, byte by byte with a turn for each, and its end.
struct Taken {
  void start(FrameSocket& server) {
    server.start(
        [this](std::string_view& input) {
          if (input.empty() || input.front() == '.') return FrameSocket::Rest::more;
          words += input.front();
          input.remove_prefix(1);
          if (at_each) at_each();
          return FrameSocket::Rest::turn;
        },
        [this](const boost::system::error_code& error) { end = error; });
  }
  std::string words;
  std::function<void()> at_each;
  std::optional<boost::system::error_code> end;
};

void say(const Pair& pair, std::string_view words) {
  REQUIRE(::send(pair.client.get(), words.data(), words.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(words.size()));
}

}  // namespace

TEST_CASE("what is held back comes in its turn, and the end behind it", "[net][frame_socket]") {
  Pair pair;
  Taken taken;
  int turns = 0, turns_before = -1;
  std::function<void()> other = [&] {
    ++turns;
    boost::asio::post(pair.loop, [&] { other(); });
  };
  taken.at_each = [&] {
    REQUIRE(turns > std::exchange(turns_before, turns));
    const auto until = std::chrono::steady_clock::now() + 5ms;  // longer than a frame may take
    while (std::chrono::steady_clock::now() < until) continue;
  };
  pair.server->set_frame_limit(1ms);
  taken.start(*pair.server);
  say(pair, "abcdefgh");
  SECTION("in good order") { ::shutdown(pair.client.get(), SHUT_WR); }
  SECTION("with others looking whether there is more") {
    ::shutdown(pair.client.get(), SHUT_WR);
    other = [&] {
      ++turns;
      if (!taken.end) pair.server->poll();
      boost::asio::post(pair.loop, [&] { other(); });
    };
    turns_before = -1000;
    taken.at_each = {};
  }
  other();
  run_until(pair.loop, [&] { return taken.end.has_value(); });
  REQUIRE(taken.words == "abcdefgh");
  REQUIRE_FALSE(*taken.end);
}

TEST_CASE("what is held back is not lost with the way to its peer", "[net][frame_socket]") {
  Pair pair;
  Taken taken;
  taken.at_each = [&] { pair.server->write("x"); };
  taken.start(*pair.server);
  say(pair, "abcdefgh");
  pair.client.reset();
  run_until(pair.loop, [&] { return taken.end.has_value(); });
  REQUIRE(taken.words == "abcdefgh");
}

TEST_CASE("a frame's beginning that was held back has its time from then on", "[net][frame_socket]") {
  Pair pair;
  Taken taken;
  pair.server->set_frame_limit(50ms);
  taken.start(*pair.server);
  say(pair, "ab.");
  run_until(pair.loop, [&] { return taken.end.has_value(); });
  REQUIRE(taken.words == "ab");
  REQUIRE(*taken.end == boost::asio::error::timed_out);
}
