// What real children wait for, whether they move, and who is asked for its stack.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <semaphore.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "launcher/os/diagnosis/worker_view.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "tests/support/seen_child.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/tracing.hpp"
#include "tests/support/uninterruptible.hpp"

using namespace torchup;
using namespace torchup::test;

namespace {

/// Both ends of a connection over the loopback interface, and the address of the first one's peer.
struct Connection {
  Connection() {
    const UniqueFd listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(listener.get(), any, size) == 0);
    REQUIRE(::listen(listener.get(), 1) == 0);
    REQUIRE(::getsockname(listener.get(), any, &size) == 0);
    first.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(first.get(), any, size) == 0);
    second.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    peer = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  UniqueFd first, second;
  std::string peer;
};

#if defined(__x86_64__)
const std::string poll_name = "poll";
#else
const std::string poll_name = "ppoll";
#endif

/// The path of a fifo that nobody has open.
std::string fifo_in(const test::TemporaryFolder& folder) {
  std::string path = (folder.path / "fifo").string();
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  return path;
}

/// Of a forked process, which may begin after its parent's end.
void end_with(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);
}

}  // namespace

TEST_CASE("a worker that waits tells for what", "[process][diagnosis]") {
  need_system_calls_seen();
  const test::TemporaryFolder folder;
  SECTION("the bytes of a file") {
    const std::string path = fifo_in(folder);
    const Child child{[&] { read_one(::open(path.c_str(), O_RDWR)); }};
    CHECK(reaches(child, "sleeping in read of " + path) == "sleeping in read of " + path);
  }
  SECTION("the opening of a file") {
    const std::string path = fifo_in(folder);
    const Child child{[&] { ::open(path.c_str(), O_RDONLY); }};
    CHECK(reaches(child, "sleeping in openat of " + path) == "sleeping in openat of " + path);
  }
  SECTION("a pipe") {
    const Pipe pipe;
    const Child child{[&] { read_one(pipe.out.get()); }};
    CHECK(reaches(child, "sleeping in read of a pipe") == "sleeping in read of a pipe");
  }
  SECTION("a peer") {
    const Connection connection;
    const Child child{[&] {
      char one = 0;
      ::recv(connection.first.get(), &one, 1, 0);
    }};
    const std::string text = "sleeping in recvfrom of " + connection.peer;
    CHECK(reaches(child, text) == text);
  }
  SECTION("a peer, with a time limit") {
    const Connection connection;
    const Child child{[&] {
      pollfd one{connection.first.get(), POLLIN, 0};
      ::poll(&one, 1, -1);
    }};
    const std::string text = "sleeping in " + poll_name + " of " + connection.peer;
    CHECK(reaches(child, text) == text);
  }
  SECTION("a process beside it") {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    const UniqueFd ours{ends[0]}, theirs{ends[1]};
    const Child child{[&] {
      char one = 0;
      ::recv(theirs.get(), &one, 1, 0);
    }};
    CHECK(reaches(child, "sleeping in recvfrom of a Unix socket") == "sleeping in recvfrom of a Unix socket");
  }
  SECTION("a lock") {
    const Child child{[] {
      sem_t never;
      ::sem_init(&never, 0, 0);
      ::sem_wait(&never);
    }};
    CHECK(reaches(child, "sleeping in futex") == "sleeping in futex");
  }
  SECTION("a child of its own") {
    Shared<std::atomic<pid_t>> grandchild;
    const Child child{[&] {
      const pid_t parent = ::getpid();
      const pid_t pid = ::fork();
      if (pid == 0) {
        end_with(parent);
        while (true) ::pause();
      }
      *grandchild.value = pid;
      ::waitpid(pid, nullptr, 0);
    }};
    REQUIRE(comes([&] { return grandchild.value->load() > 0; }));
    const std::string text = "sleeping in wait4 of process " + std::to_string(grandchild.value->load());
    CHECK(reaches(child, text) == text);
    CHECK(process_tree(child.pid()) == std::vector{child.pid(), grandchild.value->load()});
  }
}

TEST_CASE("a worker that does not wait is told by its state", "[process][diagnosis]") {
  SECTION("running") {
    const Child child{compute};
    CHECK(reaches(child, "running") == "running");
  }
  SECTION("stopped") {
    const Child child{[] { ::raise(SIGSTOP); }};
    CHECK(reaches(child, "stopped") == "stopped");
  }
  SECTION("debugged") {
    need(may_trace(), "nobody may trace other processes here");
    const Child child{[] {
      ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      ::raise(SIGSTOP);
    }};
    const std::string text = "stopped by a debugger, traced by process " + std::to_string(::getpid());
    CHECK(reaches(child, text) == text);
    CHECK(read_kernel_view(child.pid()).tracer == ::getpid());
  }
  SECTION("ended, and gone") {
    Child child{[] {}};
    const pid_t pid = child.pid();
    CHECK(reaches(child, "ended") == "ended");
    static_cast<void>(child.end());
    CHECK(read_kernel_view(pid).state == '?');
    CHECK(read_activity(pid, process_tree(pid)) == Activity{});
  }
}

TEST_CASE("no memory is read while another thread sleeps uninterruptibly", "[process][diagnosis]") {
  need_system_calls_seen();
  const test::TemporaryFolder folder;
  const std::string path = fifo_in(folder);
  Shared<std::atomic<pid_t>> pids;
  {
    const Child child{[&] {
      std::thread{[&] {
        test::sleep_uninterruptibly([&] {
          ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // however the test ends
          *pids.value = ::getpid();
        });
      }}.detach();
      while (pids.value->load() == 0) ::sched_yield();
      ::open(path.c_str(), O_RDONLY);
    }};
    CHECK(reaches(child, "sleeping in openat") == "sleeping in openat");
  }
  if (pids.value->load() > 0) ::kill(*pids.value, SIGKILL);
}

TEST_CASE("what a worker uses is seen, and what it does not", "[process][diagnosis]") {
  const Child still{[] {
    while (true) ::pause();
  }};
  REQUIRE(comes([&] { return text_of(still.pid()).starts_with("sleeping"); }));
  REQUIRE(comes([&] { return read_kernel_view(still.pid()).state == 'S'; }));
  const Activity still_before = read_activity(still.pid(), process_tree(still.pid()));
  const auto moves = [](const Child& child, bool main) {
    const Activity before = read_activity(child.pid(), process_tree(child.pid()));
    return comes([&] {
      Activity after = read_activity(child.pid(), process_tree(child.pid()));
      if (!main) after.main_ran_ns = before.main_ran_ns, after.main_switches = before.main_switches;
      return is_moving(before, after, 1s, false);
    });
  };
  SECTION("its main thread computes") {
    const Child child{compute};
    CHECK(moves(child, true));
  }
  SECTION("its child computes") {
    const Child child{[] {
      const pid_t parent = ::getpid();
      const pid_t pid = ::fork();
      if (pid == 0) {
        end_with(parent);
        compute();
      }
      ::waitpid(pid, nullptr, 0);
    }};
    REQUIRE(comes([&] { return process_tree(child.pid()).size() == 2; }));
    CHECK(moves(child, false));
  }
  SECTION("it writes") {
    const Child child{[] {
      const int null = ::open("/dev/null", O_WRONLY);
      const std::string bytes(4096, 'x');
      while (::write(null, bytes.data(), bytes.size()) > 0) {
      }
    }};
    const Activity before = read_activity(child.pid(), {child.pid()});
    CHECK(comes(
        [&] { return *read_activity(child.pid(), {child.pid()}).tree_io_bytes >= *before.tree_io_bytes + 65536; }));
  }
  // All that time the other one has done nothing.
  CHECK(read_activity(still.pid(), process_tree(still.pid())) == still_before);
}

namespace {

/// Who has handled the signal.
std::atomic<pid_t>* handled_by = nullptr;
void handle(int) { *handled_by = static_cast<pid_t>(::syscall(SYS_gettid)); }

std::atomic<int>* handled_times = nullptr;
void count(int) { ++*handled_times; }

}  // namespace

TEST_CASE("stacks are asked for only of who can answer", "[process][diagnosis]") {
  struct Threads {
    std::atomic<pid_t> helper, handled;
  };
  Shared<Threads> threads;
  constexpr int signal = stack_signal_max;
  const Pipe pipe;
  const Child worker{[&] {
    ::setsid();
    handled_by = &threads.value->handled;
    std::signal(signal, handle);
    std::thread helper{[&] {
      threads.value->helper = static_cast<pid_t>(::syscall(SYS_gettid));
      while (true) read_one(pipe.out.get());
    }};
    while (true) read_one(pipe.out.get());
  }};
  REQUIRE(comes([&] { return threads.value->helper.load() > 0; }));
  StackWriter writer{worker.pid(), threads.value->helper.load(), signal};
  SECTION("its helper thread") {
    CHECK(ask_for_stack(worker.pid(), writer) == StackAsked::helper);
    CHECK(comes([&] { return threads.value->handled.load() == writer.helper; }));
  }
  SECTION("without one, the main thread") {
    writer.helper = 0;
    CHECK(ask_for_stack(worker.pid(), writer) == StackAsked::main);
    CHECK(comes([&] { return threads.value->handled.load() == worker.pid(); }));
  }
  SECTION("a helper that is another process's thread is not asked") {
    writer.helper = ::getpid();
    CHECK(ask_for_stack(worker.pid(), writer) == StackAsked::main);
  }
  SECTION("nobody who would die of it, or is not the worker's") {
    writer.signal = signal - 1;
    CHECK(ask_for_stack(worker.pid(), writer) == StackAsked::no);
    for (const int other : {0, -1, SIGKILL, SIGTERM, stack_signal_min - 1, stack_signal_max + 1, 64, 1 << 20}) {
      writer.signal = other;
      CHECK(ask_for_stack(worker.pid(), writer) == StackAsked::no);
    }
    writer.signal = signal;
    CHECK(ask_for_stack(::getpid(), writer) == StackAsked::no);
    for (const pid_t other : {0, -1, 1, ::getpid()}) {
      writer.process = other;
      CHECK(ask_for_stack(worker.pid(), writer) == StackAsked::no);
    }
    CHECK(comes([&] { return text_of(worker.pid()).starts_with("sleeping"); }));
    CHECK(threads.value->handled.load() == 0);
  }
}

TEST_CASE("who waits for signals itself is not sent one", "[process][diagnosis]") {
  need_system_calls_seen();
  struct Threads {
    std::atomic<pid_t> helper, handled;
    std::atomic<bool> went_on;
  };
  Shared<Threads> threads;
  constexpr int signal = stack_signal_max;
  const Pipe pipe;
  std::function<void()> wait;
  std::string where;
  const auto wait_for = [&where](std::vector<int> numbers) {
    where = "sleeping in rt_sigtimedwait";
    return [numbers = std::move(numbers)] {
      sigset_t set;
      ::sigemptyset(&set);
      for (const int number : numbers) ::sigaddset(&set, number);
      ::sigprocmask(SIG_BLOCK, &set, nullptr);
      int got = 0;
      ::sigwait(&set, &got);
    };
  };
  bool asked = false;
  SECTION("it takes this one out of a set") { wait = wait_for({SIGTERM, signal}); }
  SECTION("it takes others") {
    wait = wait_for({SIGTERM, signal - 1});
    asked = true;
  }
  SECTION("it goes on after any") {
    where = "sleeping in rt_sigsuspend";
    wait = [] {
      sigset_t none;
      ::sigemptyset(&none);
      ::sigsuspend(&none);
    };
  }
  SECTION("it blocks it, as for a signalfd") {
    where = "sleeping in read of a pipe";
    wait = [&pipe] {
      sigset_t set;
      ::sigemptyset(&set);
      ::sigaddset(&set, signal);
      ::sigprocmask(SIG_BLOCK, &set, nullptr);
      read_one(pipe.out.get());
    };
  }
  const Child worker{[&] {
    ::setsid();
    handled_by = &threads.value->handled;
    std::signal(signal, handle);
    std::thread{[&] {
      threads.value->helper = static_cast<pid_t>(::syscall(SYS_gettid));
      while (true) read_one(pipe.out.get());
    }}.detach();
    while (threads.value->helper.load() == 0) ::sched_yield();
    wait();
    threads.value->went_on = true;
    while (true) read_one(pipe.out.get());
  }};
  REQUIRE(reaches(worker, where) == where);
  const StackWriter alone{worker.pid(), 0, signal}, with_helper{worker.pid(), threads.value->helper.load(), signal};
  CHECK(ask_for_stack(worker.pid(), alone) == (asked ? StackAsked::main : StackAsked::no));
  if (asked) CHECK(comes([&] { return threads.value->handled.load() == worker.pid(); }));
  CHECK(ask_for_stack(worker.pid(), with_helper) == StackAsked::helper);
  CHECK(comes([&] { return threads.value->handled.load() == with_helper.helper; }));
  CHECK(reaches(worker, where) == where);
  CHECK_FALSE(threads.value->went_on.load());
}

TEST_CASE("who has not handled a signal yet is not sent it again", "[process][diagnosis]") {
  constexpr int signal = stack_signal_max;
  Shared<std::atomic<int>> times;
  const Child worker{[&] {
    ::setsid();
    handled_times = times.value;
    std::signal(signal, count);
    ::raise(SIGSTOP);
  }};
  REQUIRE(reaches(worker, "stopped") == "stopped");
  const StackWriter writer{worker.pid(), 0, signal};
  CHECK(ask_for_stack(worker.pid(), writer) == StackAsked::main);
  CHECK(ask_for_stack(worker.pid(), writer) == StackAsked::main);
  ::kill(worker.pid(), SIGCONT);
  CHECK(reaches(worker, "ended") == "ended");
  CHECK(times.value->load() == 1);
}
