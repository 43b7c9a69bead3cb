// The least that any server of this protocol can do on epoll: recv, a hash map, send. It answers the benchmark's PING
// and ADD and nothing else, and checks nothing: what a real server costs beyond it is what the server adds.
//
// usage: bench_store_floor [awake]     prints "ready on 127.0.0.1:PORT"; awake: never sleeps
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>

namespace {

struct Hash {
  using is_transparent = void;
  std::size_t operator()(std::string_view key) const { return std::hash<std::string_view>{}(key); }
};
std::unordered_map<std::string, std::string, Hash, std::equal_to<>> map;

template <class T>
T load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

/// The answer to one ADD: code, key length, key, delta. The value is kept as decimal text, as in every TCPStore.
std::int64_t add(const char* request) {
  const auto length = load<std::uint64_t>(request + 1);
  const std::string_view key{request + 9, length};
  auto entry = map.find(key);
  if (entry == map.end()) entry = map.emplace(key, "0").first;
  std::int64_t number = 0;
  std::from_chars(entry->second.data(), entry->second.data() + entry->second.size(), number);
  number += load<std::int64_t>(request + 9 + length);
  std::array<char, 24> text;
  entry->second.assign(text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr);
  return number;
}

}  // namespace

int main(int argc, char** argv) {
  const int patience_ms = argc > 1 && std::string_view{argv[1]} == "awake" ? 0 : -1;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const int on = 1;
  ::setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener, 4096) != 0) return 1;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  std::printf("ready on 127.0.0.1:%d\n", ntohs(address.sin_port)), std::fflush(stdout);

  const int epoll = ::epoll_create1(0);
  const auto watch = [&](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  };
  watch(listener);
  std::array<epoll_event, 512> events;
  static char buffer[65536];
  for (;;) {
    const int count = ::epoll_wait(epoll, events.data(), events.size(), patience_ms);
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == listener) {
        for (int peer; (peer = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK)) >= 0;) watch(peer);
        continue;
      }
      const ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
      if (got <= 0) {
        ::close(fd);
        continue;
      }
      if (buffer[0] == 4) {
        const std::int64_t sum = add(buffer);
        ::send(fd, &sum, sizeof sum, MSG_NOSIGNAL);
      } else {
        ::send(fd, buffer + got - 4, 4, MSG_NOSIGNAL);  // the greeting: its nonce
      }
    }
  }
}
