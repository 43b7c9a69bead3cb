#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <new>
#include <string>
#include <thread>

#include "launcher/os/diagnosis/worker_view.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

/// Real children, to be seen from outside.
namespace torchup::test {

using namespace std::chrono_literals;

/// A forked process, killed at the end.
class Child {
 public:
  explicit Child(const std::function<void()>& life) {
    std::fflush(stdout);  // what the tests have said is not said again
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      life();
      ::_exit(0);
    }
    REQUIRE(pid_ > 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    static_cast<void>(end());
  }
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Its raw status.
  int end() {
    int status = 0;
    ::waitpid(pid_, &status, __WALL);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
};

template <class Done>
bool comes(Done done) {
  const TimePoint end = std::chrono::steady_clock::now() + 60s;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

inline std::string text_of(pid_t pid) { return kernel_text(read_kernel_view(pid), own_processor()); }

/// Waits until a process does what it is to do; the text is what it does else.
inline std::string reaches(pid_t pid, const std::string& text) {
  std::string last;
  static_cast<void>(comes([&] { return (last = text_of(pid)) == text; }));
  return last;
}
inline std::string reaches(const Child& child, const std::string& text) { return reaches(child.pid(), text); }

struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    out.reset(ends[0]);
    in.reset(ends[1]);
  }
  UniqueFd out, in;
};

inline void read_one(int fd) {
  char one = 0;
  while (::read(fd, &one, 1) < 0 && errno == EINTR) {
  }
}

[[noreturn]] inline void compute() {
  while (true) asm volatile("");
}

/// Memory that a child shares with us.
template <class T>
struct Shared {
  Shared() {
    void* const memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    value = new (memory) T{};
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(value, sizeof(T)); }
  T* value;
};

}  // namespace torchup::test
