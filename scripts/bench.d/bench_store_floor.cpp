// The least that any server of this protocol can do on epoll: recv, a hash map, send. It answers the benchmark's PING
// and ADD and nothing else, and checks nothing: what a real server costs beyond it is what the server adds.
//
// usage: bench_store_floor [awake|uring]     prints "ready on 127.0.0.1:PORT"
//   awake     never sleeps
//   uring     epoll tells who is ready; what it tells of at once is received with one call and answered with another,
//             through io_uring (Linux 6.1 and later)
#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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

constexpr std::size_t events_max = 512;
constexpr std::size_t request_bytes_max = 256;

void watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

void accept_all(int epoll, int listener) {
  for (int peer; (peer = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK)) >= 0;) watch(epoll, peer);
}

/// Calls that are made together. Each is done, or has failed, when run() returns: none waits for its socket.
class Calls {
 public:
  Calls() {
    io_uring_params setup{};
    setup.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SUBMIT_ALL;
    ring_ = static_cast<int>(::syscall(__NR_io_uring_setup, events_max, &setup));
    if (ring_ < 0) std::perror("io_uring_setup"), std::exit(1);
    char* const asked = map_part(IORING_OFF_SQ_RING, setup.sq_off.array + setup.sq_entries * sizeof(unsigned));
    char* const told = map_part(IORING_OFF_CQ_RING, setup.cq_off.cqes + setup.cq_entries * sizeof(io_uring_cqe));
    calls_ = reinterpret_cast<io_uring_sqe*>(map_part(IORING_OFF_SQES, setup.sq_entries * sizeof(io_uring_sqe)));
    const auto number = [](char* part, unsigned offset) { return reinterpret_cast<unsigned*>(part + offset); };
    asked_end_ = number(asked, setup.sq_off.tail);
    asked_mask_ = setup.sq_entries - 1;
    for (unsigned i = 0; i < setup.sq_entries; ++i) number(asked, setup.sq_off.array)[i] = i;
    told_begin_ = number(told, setup.cq_off.head);
    told_end_ = number(told, setup.cq_off.tail);
    told_mask_ = setup.cq_entries - 1;
    results_ = reinterpret_cast<const io_uring_cqe*>(told + setup.cq_off.cqes);
  }

  /// At most events_max between two runs. `flags`: IOSQE_CQE_SKIP_SUCCESS: nobody wants to know that it has succeeded.
  void add(std::uint8_t what, int fd, const void* bytes, std::size_t size, std::uint64_t tag, std::uint8_t flags = 0) {
    io_uring_sqe& call = calls_[end_++ & asked_mask_];
    call = {};
    call.opcode = what;
    call.flags = flags;
    call.fd = fd;
    call.addr = reinterpret_cast<std::uint64_t>(bytes);
    call.len = static_cast<std::uint32_t>(size);
    call.msg_flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    if (what == IORING_OP_SEND) call.msg_flags |= MSG_WAITALL;  // or a part of it would be a success too
    call.user_data = tag;
  }

  /// `told` is called with the tag and the result of each that has one to tell.
  template <class Told>
  void run(Told told) {
    std::atomic_ref{*asked_end_}.store(end_, std::memory_order_release);
    while (begun_ != end_) {
      const auto begun = ::syscall(__NR_io_uring_enter, ring_, end_ - begun_, 0, 0, nullptr, 0);
      if (begun < 0 && errno != EINTR) std::perror("io_uring_enter"), std::exit(1);
      if (begun > 0) begun_ += static_cast<unsigned>(begun);
    }
    unsigned at = *told_begin_;
    for (const unsigned end = std::atomic_ref{*told_end_}.load(std::memory_order_acquire); at != end; ++at)
      told(results_[at & told_mask_].user_data, results_[at & told_mask_].res);
    std::atomic_ref{*told_begin_}.store(at, std::memory_order_release);
  }

 private:
  char* map_part(off_t offset, std::size_t size) {
    void* const part = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring_, offset);
    if (part == MAP_FAILED) std::perror("mmap"), std::exit(1);
    return static_cast<char*>(part);
  }

  int ring_ = -1;
  io_uring_sqe* calls_ = nullptr;
  const io_uring_cqe* results_ = nullptr;
  unsigned *asked_end_ = nullptr, *told_begin_ = nullptr, *told_end_ = nullptr;
  unsigned asked_mask_ = 0, told_mask_ = 0, end_ = 0, begun_ = 0;
};

[[noreturn]] void serve_uring(int epoll, int listener) {
  Calls calls;
  std::array<epoll_event, events_max> events;
  static std::array<std::array<char, request_bytes_max>, events_max> requests;
  std::array<std::int64_t, events_max> answers;
  for (;;) {
    const int count = ::epoll_wait(epoll, events.data(), events.size(), -1);
    bool newcomers = false;
    for (std::size_t i = 0; static_cast<int>(i) < count; ++i) {
      if (events[i].data.fd == listener) {
        newcomers = true;
      } else {
        calls.add(IORING_OP_RECV, events[i].data.fd, requests[i].data(), request_bytes_max, i);
      }
    }
    calls.run([&](std::uint64_t i, int got) {
      const int fd = events[i].data.fd;
      if (got <= 0) {
        ::close(fd);
        return;
      }
      const bool is_add = requests[i][0] == 4;
      if (is_add) {
        answers[i] = add(requests[i].data());
      } else {
        std::memcpy(&answers[i], requests[i].data() + got - 4, 4);  // the greeting: its nonce
      }
      calls.add(IORING_OP_SEND, fd, &answers[i], is_add ? 8 : 4, i, IOSQE_CQE_SKIP_SUCCESS);
    });
    calls.run([&](std::uint64_t i, int) { ::close(events[i].data.fd); });
    if (newcomers) accept_all(epoll, listener);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  const int patience_ms = mode == "awake" ? 0 : -1;
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
  watch(epoll, listener);
  if (mode == "uring") serve_uring(epoll, listener);
  std::array<epoll_event, events_max> events;
  static char buffer[65536];
  for (;;) {
    const int count = ::epoll_wait(epoll, events.data(), events.size(), patience_ms);
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == listener) {
        accept_all(epoll, listener);
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
