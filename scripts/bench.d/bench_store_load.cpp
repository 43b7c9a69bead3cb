// The load of scripts/bench store: many connections in one thread, each with one request under way. Prints one JSON
// line.
//
// usage: bench_store_load MODE PORT [CONNECTIONS] [SECONDS]
//   add      ADD on CONNECTIONS connections (TCPStore), counted for SECONDS after a warm-up
//   incr     the same load in Redis's language
//   idle     as add on one connection, while CONNECTIONS others do nothing
//   storm    CONNECTIONS clients connect at once, then all meet at a barrier
//   values   MULTI_SET and MULTI_GET of four values of 8 MiB
//   client   ADD through our own client
// or: bench_store_load take SHARE
//   keeps the CPU that it runs on busy for SHARE (0 to 1) of every 10 ms, until its parent ends
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "rendezvous/core/store/store_codec.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "rendezvous/net/store/store_client.hpp"

namespace {

using namespace torchup;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

[[noreturn]] void die(const std::string& what) { throw std::runtime_error{what + ": " + std::strerror(errno)}; }

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

const std::string greeting = [] {
  std::string bytes("\0", 1);
  put_nonce(bytes, validate_magic);
  bytes += "\x0d";
  put_nonce(bytes, 4242);
  return bytes;
}();

std::string add_request(int key) {
  std::string bytes{static_cast<char>(Query::add)};
  put_bytes(bytes, "/bench/" + std::to_string(key));
  put_number(bytes, 1);
  return bytes;
}

std::string incr_request(int key) {
  const std::string name = "/bench/" + std::to_string(key);
  return "*2\r\n$4\r\nINCR\r\n$" + std::to_string(name.size()) + "\r\n" + name + "\r\n";
}

struct Peer {
  UniqueFd socket;
  std::string request;
  std::size_t got = 0;  ///< bytes of the reply under way
};

class Load {
 public:
  Load(int port, int connections)
      : epoll_{::epoll_create1(EPOLL_CLOEXEC)}, peers_(static_cast<std::size_t>(connections)) {
    const sockaddr_in address = loopback(port);
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      peers_[i].socket.reset(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (!peers_[i].socket) die("socket");
      const int on = 1;
      ::setsockopt(peers_[i].socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      if (::connect(peers_[i].socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
          errno != EINPROGRESS)
        die("connect");
      watch(i, EPOLLOUT, EPOLL_CTL_ADD);
    }
  }

  std::vector<Peer>& peers() { return peers_; }
  void send(Peer& peer, const std::string& bytes) {
    if (::send(peer.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size()))
      die("send");
  }

  /// Sends `bytes` on each connection as soon as it stands, and waits until each has got `reply` bytes.
  void greet(const std::string& bytes, std::size_t reply) {
    std::size_t left = peers_.size();
    for (Peer& peer : peers_) peer.got = 0;
    each_event([&](Peer& peer, std::uint64_t index, std::uint32_t events) {
      if (events & EPOLLOUT) {
        send(peer, bytes);
        watch(index, EPOLLIN);
        return left > 0;
      }
      peer.got += receive(peer);
      if (peer.got == reply) --left;
      return left > 0;
    });
  }

  /// All send at once, and all must be answered.
  void meet(const std::string& bytes, std::size_t reply) {
    std::size_t left = peers_.size();
    for (Peer& peer : peers_) peer.got = 0;
    for (Peer& peer : peers_) send(peer, bytes);
    each_event([&](Peer& peer, std::uint64_t, std::uint32_t) {
      peer.got += receive(peer);
      if (peer.got == reply) --left;
      return left > 0;
    });
  }

  /// One request after the other on the first `active` connections. Requests per second, after a warm-up.
  ///
  /// Costs as little as it can, or the load would be what is measured: answers are taken and requests sent in batches,
  /// and what is answered as a whole needs no second look.
  template <class Complete>
  double run(std::size_t active, double duration, Complete complete) {
    for (std::size_t i = 0; i < active; ++i) watch(i, EPOLLIN | EPOLLET), send(peers_[i], peers_[i].request);
    constexpr std::size_t batch = 16;
    std::vector<epoll_event> events(512);
    std::array<Peer*, batch> asking{};
    std::uint64_t answered = 0, counted_from = 0, next_look = 0;
    auto begin = Clock::now();
    for (bool warm = false;;) {
      const std::size_t count = wait(events);
      for (std::size_t i = 0; i < count;) {
        std::size_t asks = 0;
        for (; i < count && asks < batch; ++i) {
          if (i + 2 < count) __builtin_prefetch(&peers_[events[i + 2].data.u64]);
          Peer& peer = peers_[events[i].data.u64];
          if (complete(buffer_, receive(peer))) asking[asks++] = &peer;
        }
        for (std::size_t ask = 0; ask < asks; ++ask) send(*asking[ask], asking[ask]->request);
        answered += asks;
      }
      if (answered < next_look) continue;
      next_look = answered + 256;
      const double passed = seconds_since(begin);
      if (!warm && passed > 0.3) {
        warm = true;
        counted_from = answered;
        begin = Clock::now();
        std::printf("warm\n"), std::fflush(stdout);  // from here on the server's CPU time counts
      } else if (warm && passed > duration) {
        return static_cast<double>(answered - counted_from) / passed;
      }
    }
  }

 private:
  template <class Handle>
  void each_event(Handle handle) {
    std::vector<epoll_event> events(512);
    for (bool more = true; more;) {
      const std::size_t count = wait(events);
      for (std::size_t i = 0; i < count && more; ++i)
        more = handle(peers_[events[i].data.u64], events[i].data.u64, events[i].events);
    }
  }

  std::size_t wait(std::vector<epoll_event>& events) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 20'000);
    if (count <= 0) die("nothing happened for 20 s");
    return static_cast<std::size_t>(count);
  }

  void watch(std::size_t index, std::uint32_t events, int operation = EPOLL_CTL_MOD) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = index;
    ::epoll_ctl(epoll_.get(), operation, peers_[index].socket.get(), &event);
  }

  std::size_t receive(Peer& peer) {
    const ssize_t got = ::recv(peer.socket.get(), buffer_, sizeof buffer_, 0);
    if (got <= 0) die("recv");
    return static_cast<std::size_t>(got);
  }

  UniqueFd epoll_;
  std::vector<Peer> peers_;
  char buffer_[4096];
};

void read_exactly(int socket, char* into, std::size_t size) {
  while (size > 0) {
    const ssize_t got = ::recv(socket, into, size, 0);
    if (got <= 0) die("recv");
    into += got;
    size -= static_cast<std::size_t>(got);
  }
}

/// Gigabytes per second of values, there and back.
std::pair<double, double> transfer_values(int port, double duration) {
  UniqueFd socket{::socket(AF_INET, SOCK_STREAM, 0)};
  const sockaddr_in address = loopback(port);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) die("connect");
  const auto send_all = [&](const std::string& bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t sent = ::send(socket.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) die("send");
      at += static_cast<std::size_t>(sent);
    }
  };
  constexpr int count = 4;
  const std::string value(std::size_t{8} << 20, 'v');
  std::string set{static_cast<char>(Query::multi_set)}, get{static_cast<char>(Query::multi_get)},
      ping{static_cast<char>(Query::ping)};
  put_number(set, count);
  put_number(get, count);
  put_nonce(ping, 1);
  for (int i = 0; i < count; ++i) {
    const std::string key = "/value/" + std::to_string(i);
    put_bytes(set, key), put_bytes(set, value), put_bytes(get, key);
  }
  std::vector<char> reply(count * (value.size() + 8));
  send_all(greeting);
  read_exactly(socket.get(), reply.data(), 4);
  double set_s = 0, get_s = 0;
  int rounds = 0;
  for (const auto begin = Clock::now(); rounds < 3 || seconds_since(begin) < duration; ++rounds) {
    auto start = Clock::now();
    send_all(set);
    send_all(ping);  // answered when the values are in
    read_exactly(socket.get(), reply.data(), 4);
    if (rounds > 0) set_s += seconds_since(start);
    start = Clock::now();
    send_all(get);
    read_exactly(socket.get(), reply.data(), reply.size());
    if (rounds > 0) get_s += seconds_since(start);
  }
  const double gigabytes = 1e-9 * count * static_cast<double>(value.size()) * (rounds - 1);
  return {gigabytes / set_s, gigabytes / get_s};
}

/// Counts what it has got, not what has passed: who shares the CPU may have kept it waiting.
[[noreturn]] void take(double share) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody else would end it
  constexpr auto period = std::chrono::milliseconds{10};
  const double clocks = share * std::chrono::duration<double>(period).count() * CLOCKS_PER_SEC;
  for (;;) {
    const auto end = Clock::now() + period;
    for (const std::clock_t begin = std::clock(); static_cast<double>(std::clock() - begin) < clocks;) {
    }
    std::this_thread::sleep_until(end);
  }
}

double through_our_client(int port, double duration) {
  auto client = StoreClient::connect({"localhost", Port{static_cast<std::uint16_t>(port)}});
  if (!client) throw std::runtime_error{client.error().message()};
  for (int i = 0; i < 1000; ++i) (void)(*client)->add("bench/0", 1);
  std::printf("warm\n"), std::fflush(stdout);
  std::uint64_t calls = 0;
  const auto begin = Clock::now();
  for (; calls % 256 != 0 || seconds_since(begin) < duration; ++calls)
    if (!(*client)->add("bench/0", 1)) throw std::runtime_error{"add failed"};
  return static_cast<double>(calls) / seconds_since(begin);
}

int run(const std::string& mode, int port, int connections, double duration) {
  if (mode == "values") {
    const auto [set, get] = transfer_values(port, duration);
    std::printf("{\"set_gb_per_s\": %.3f, \"get_gb_per_s\": %.3f}\n", set, get);
    return 0;
  }
  if (mode == "client") {
    std::printf("{\"per_second\": %.1f}\n", through_our_client(port, duration));
    return 0;
  }
  const auto begin = Clock::now();
  Load load{port, connections + (mode == "idle" ? 1 : 0)};
  const bool redis = mode == "incr";
  load.greet(redis ? "*1\r\n$4\r\nPING\r\n" : greeting, redis ? 7u : 4u);
  const double connected_s = seconds_since(begin);
  if (mode == "storm") {
    std::string arrival{static_cast<char>(Query::barrier)};
    put_bytes(arrival, "/storm/" + std::to_string(::getpid()));
    put_number(arrival, connections);
    std::printf("connected\n"), std::fflush(stdout);
    if (std::getchar() == EOF) return 1;  // the caller looks at the server's memory
    const auto meeting = Clock::now();
    load.meet(arrival, 1);
    std::printf("{\"connect_s\": %.4f, \"barrier_s\": %.4f}\n", connected_s, seconds_since(meeting));
    return 0;
  }
  int key = 0;
  for (Peer& peer : load.peers()) peer.request = redis ? incr_request(key++ % 1000) : add_request(key++ % 1000);
  const std::size_t active = mode == "idle" ? 1 : load.peers().size();
  const double rate =
      redis ? load.run(active, duration, [](const char* bytes, std::size_t size) { return bytes[size - 1] == '\n'; })
            : load.run(active, duration, [](const char*, std::size_t size) { return size == 8; });
  std::printf("{\"per_second\": %.1f}\n", rate);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view{argv[1]} == "take") take(std::atof(argv[2]));
  if (argc < 3) return std::fprintf(stderr, "usage: bench_store_load MODE PORT [CONNECTIONS] [SECONDS]\n"), 2;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  try {
    return run(argv[1], std::atoi(argv[2]), argc > 3 ? std::atoi(argv[3]) : 1, argc > 4 ? std::atof(argv[4]) : 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_store_load: %s\n", error.what());
    return 1;
  }
}
