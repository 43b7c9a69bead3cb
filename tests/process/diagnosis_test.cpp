// Real children, seen from outside: what they wait for, whether they move, and their native stacks.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "launcher/os/diagnosis/native_stack.hpp"
#include "launcher/os/diagnosis/thread_copy.hpp"
#include "launcher/os/diagnosis/worker_view.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "tests/support/temporary_folder.hpp"

#if __has_include(<elfutils/libdwfl.h>)
#include <elfutils/libdwfl.h>
#endif

using namespace torchup;
using namespace std::chrono_literals;

namespace {

/// A forked process, killed at the end.
class Child {
 public:
  explicit Child(const std::function<void()>& life) {
    std::fflush(stdout);  // what the tests have said is not said again
    pid_ = ::fork();
    if (pid_ == 0) {
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
  const TimePoint end = std::chrono::steady_clock::now() + 20s;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

std::string text_of(pid_t pid) { return kernel_text(read_kernel_view(pid), own_processor()); }

/// Waits until a process does what it is to do; the text is what it does else.
std::string reaches(pid_t pid, const std::string& text) {
  std::string last;
  static_cast<void>(comes([&] { return (last = text_of(pid)) == text; }));
  return last;
}
std::string reaches(const Child& child, const std::string& text) { return reaches(child.pid(), text); }

struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    out.reset(ends[0]);
    in.reset(ends[1]);
  }
  UniqueFd out, in;
};

void read_one(int fd) {
  char one = 0;
  while (::read(fd, &one, 1) < 0 && errno == EINTR) {
  }
}

[[noreturn]] void compute() {
  while (true) asm volatile("");
}

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

}  // namespace

TEST_CASE("a worker that waits tells for what", "[process][diagnosis]") {
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
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
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
  const test::TemporaryFolder folder;
  const std::string path = fifo_in(folder);
  Shared<std::atomic<pid_t>> pids;
  {
    const Child child{[&] {
      std::thread{[&] {
        const pid_t pid = ::vfork();  // who called it sleeps so until the other has ended
        if (pid == 0) {
          *pids.value = ::getpid();
          while (true) ::pause();
        }
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
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
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

}  // namespace

TEST_CASE("stacks are asked for only of who can answer", "[process][diagnosis]") {
  struct Threads {
    std::atomic<pid_t> helper, handled;
  };
  Shared<Threads> threads;
  constexpr int signal = stack_signal_max;
  const Child worker{[&] {
    ::setsid();
    handled_by = &threads.value->handled;
    std::signal(signal, handle);
    std::thread helper{[&] {
      threads.value->helper = static_cast<pid_t>(::syscall(SYS_gettid));
      while (true) ::pause();
    }};
    while (true) ::pause();
  }};
  REQUIRE(comes([&] { return threads.value->helper.load() > 0; }));
  StackWriter writer{worker.pid(), threads.value->helper.load(), signal};
  SECTION("its helper thread") {
    CHECK(ask_for_stack(worker.pid(), writer) == StackAsked::helper);
    CHECK(comes([&] { return threads.value->handled.load() == writer.helper; }));
  }
  SECTION("without one, any thread of the process") {
    writer.helper = 0;
    CHECK(ask_for_stack(worker.pid(), writer) == StackAsked::process);
    CHECK(comes([&] { return threads.value->handled.load() > 0; }));
  }
  SECTION("a helper that is another process's thread is not asked") {
    writer.helper = ::getpid();
    CHECK(ask_for_stack(worker.pid(), writer) == StackAsked::process);
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
    CHECK(text_of(worker.pid()).starts_with("sleeping"));
    CHECK(threads.value->handled.load() == 0);
  }
}

// Functions that stand in native stacks.

namespace diagnosed {

struct Loader {
  template <class T>
  [[gnu::noinline]] void wait_for_data(int fd, T) {
    read_one(fd);
    asm volatile("");  // no tail call
  }
};

[[gnu::noinline]] void recurse(int fd, int depth) {
  if (depth == 0) {
    read_one(fd);
  } else {
    recurse(fd, depth - 1);
  }
  asm volatile("");
}

}  // namespace diagnosed

namespace {

bool stands_in(const NativeThread& thread, std::string_view function) {
  return std::ranges::any_of(thread.frames, [&](const std::string& frame) {
    return frame.starts_with(function) && frame.find(" (") != std::string::npos;
  });
}

/// False where there is none, which is said: then what needs it cannot be tried.
bool usable(const dw::Library& library) {
  if (!library.problem.empty()) WARN("not tried: " << library.problem);
  return library.problem.empty();
}

NativeThread stack_of(const dw::Library& library, const Child& child) {
  const auto threads = read_native_stacks(library, std::vector{StackTarget{child.pid(), child.pid()}});
  REQUIRE(threads.size() == 1);
  return threads[0];
}

}  // namespace

TEST_CASE("a native stack is read, and the program goes on", "[process][diagnosis]") {
  const dw::Library library;
  if (!usable(library)) return;
  const Pipe pipe;
  Child child{[&] {
    char one = 0;
    diagnosed::Loader{}.wait_for_data(pipe.out.get(), 1.0);
    ::_exit(::read(pipe.out.get(), &one, 1) == 1 ? 7 : 8);  // 8: it was interrupted
  }};
  REQUIRE(reaches(child, "sleeping in read of a pipe") == "sleeping in read of a pipe");
  const NativeThread thread = stack_of(library, child);
  CHECK(thread.problem == "");
  CHECK(thread.process == child.pid());
  CHECK_FALSE(thread.name.empty());
  REQUIRE(thread.frames.size() > 2);
  CAPTURE(thread.frames);
  CHECK(thread.frames[0].find("read") != std::string::npos);
  CHECK(thread.frames[0].find("(libc.so.6)") != std::string::npos);
  CHECK(stands_in(thread, "void diagnosed::Loader::wait_for_data<…>"));
  REQUIRE(::write(pipe.in.get(), "ab", 2) == 2);
  const int status = child.end();
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}

TEST_CASE("native stacks have their limits", "[process][diagnosis]") {
  const dw::Library library;
  if (!usable(library)) return;
  const Pipe pipe;
  SECTION("frames") {
    const Child child{[&] { diagnosed::recurse(pipe.out.get(), static_cast<int>(native_frames_max)); }};
    REQUIRE(reaches(child, "sleeping in read of a pipe") == "sleeping in read of a pipe");
    const NativeThread thread = stack_of(library, child);
    CHECK(thread.frames.size() == native_frames_max);
    CHECK(thread.cut);
  }
  SECTION("threads, of which the main one comes first") {
    const Child child{[&] {
      for (std::size_t i = 1; i <= native_threads_max; ++i) {
        std::thread{[&] { read_one(pipe.out.get()); }}.detach();
      }
      read_one(pipe.out.get());
    }};
    REQUIRE(reaches(child, "sleeping in read of a pipe") == "sleeping in read of a pipe");
    const auto threads = read_native_stacks(library, std::vector{StackTarget{child.pid(), 0}});
    REQUIRE(threads.size() == native_threads_max);
    CHECK(threads[0].thread == child.pid());
    for (const NativeThread& thread : threads) CHECK(thread.problem == "");
  }
}

TEST_CASE("a stopped program is read, and stays stopped", "[process][diagnosis]") {
  const dw::Library library;
  if (!usable(library)) return;
  const Child child{[] { ::raise(SIGSTOP); }};
  REQUIRE(reaches(child, "stopped") == "stopped");
  CHECK(stack_of(library, child).frames.size() > 1);
  CHECK(reaches(child, "stopped") == "stopped");
  ::kill(child.pid(), SIGCONT);
  CHECK(reaches(child, "ended") == "ended");
}

TEST_CASE("a thread that cannot be read says why", "[process][diagnosis]") {
  const dw::Library library;
  if (!usable(library)) return;
  SECTION("somebody traces it") {
    const Child child{[] {
      ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      ::raise(SIGSTOP);
    }};
    REQUIRE(comes([&] { return read_kernel_view(child.pid()).state == 't'; }));
    CHECK(stack_of(library, child).problem == "process " + std::to_string(::getpid()) + " traces it already");
  }
  SECTION("it sleeps uninterruptibly") {
    Shared<std::atomic<pid_t>> grandchild;
    {
      const Child child{[&] {
        const pid_t pid = ::vfork();
        if (pid == 0) {
          *grandchild.value = ::getpid();
          while (true) ::pause();
        }
      }};
      REQUIRE(comes([&] { return read_kernel_view(child.pid()).state == 'D'; }));
      CHECK(stack_of(library, child).problem == "it does not stop: it sleeps uninterruptibly in the kernel");
      ::kill(*grandchild.value, SIGKILL);
    }
  }
  SECTION("it is gone") {
    Child child{[] {}};
    const pid_t pid = child.pid();
    static_cast<void>(child.end());
    const auto threads = read_native_stacks(library, std::vector{StackTarget{pid, 0}});
    REQUIRE(threads.size() == 1);
    CHECK(threads[0].problem == "there is no thread " + std::to_string(pid) + " of process " + std::to_string(pid));
  }
}

TEST_CASE("without the library each thread says what is missing", "[process][diagnosis]") {
  const dw::Library none{"libdw.so.nowhere"};
  CHECK(none.problem == "no libdw.so.nowhere: install libdw1 (Debian) or elfutils-libs (Fedora)");
  const auto threads = read_native_stacks(none, std::vector{StackTarget{::getpid(), ::getpid()}});
  REQUIRE(threads.size() == 1);
  CHECK(threads[0].problem == none.problem);
}

TEST_CASE("torchup-stack takes process ids", "[process][diagnosis]") {
  struct Answer {
    int status = -1;
    std::string out;
  };
  const auto run = [](const std::vector<std::string>& arguments) {
    Pipe out;
    Child child{[&] {
      ::dup2(out.in.get(), STDOUT_FILENO);
      ::close(STDERR_FILENO);
      ::_exit(run_stack_program(arguments));
    }};
    out.in.reset();
    Answer answer;
    char part[4096];
    for (ssize_t size = 0; (size = ::read(out.out.get(), part, sizeof part)) > 0;) {
      answer.out.append(part, static_cast<std::size_t>(size));
    }
    answer.status = WEXITSTATUS(child.end());
    return answer;
  };
  for (const std::string wrong : {"", "x", "0", "-1", "1x", "1:", ":1", "1:x", "1:0", "99999999999"}) {
    CHECK(run({wrong}).status == 2);
  }
  CHECK(run({}).status == 2);
  CHECK(run({"--help"}).status == 0);
  CHECK(run({"--help"}).out.starts_with("usage: torchup-stack "));
  if (!usable(dw::Library{})) return;
  const Pipe pipe;
  const Child child{[&] { diagnosed::Loader{}.wait_for_data(pipe.out.get(), 1.0); }};
  REQUIRE(reaches(child, "sleeping in read of a pipe") == "sleeping in read of a pipe");
  const std::string pid = std::to_string(child.pid());
  const Answer good = run({pid + ":" + pid});
  CHECK(good.status == 0);
  const auto threads = parse_native_text(good.out);
  REQUIRE(threads.size() == 1);
  CHECK(threads[0].thread == child.pid());
  CHECK(stands_in(threads[0], "void diagnosed::Loader::wait_for_data<…>"));
  const Answer gone = run({pid + ":1", pid});
  CHECK(gone.status == 1);
  CHECK(parse_native_text(gone.out).size() == 2);
  CHECK_FALSE(parse_native_text(gone.out)[0].problem.empty());
}

#if __has_include(<elfutils/libdwfl.h>)
TEST_CASE("libdw is what we take it for", "[process][diagnosis]") {
  // Where its headers are, the compiler compares.
  STATIC_REQUIRE(sizeof(dw::Callbacks) == sizeof(Dwfl_Callbacks));
  STATIC_REQUIRE(offsetof(dw::Callbacks, find_debug_file) == offsetof(Dwfl_Callbacks, find_debuginfo));
  STATIC_REQUIRE(offsetof(dw::Callbacks, section_address) == offsetof(Dwfl_Callbacks, section_address));
  STATIC_REQUIRE(sizeof(dw::ThreadCallbacks) == sizeof(Dwfl_Thread_Callbacks));
  STATIC_REQUIRE(offsetof(dw::ThreadCallbacks, memory_read) == offsetof(Dwfl_Thread_Callbacks, memory_read));
  STATIC_REQUIRE(offsetof(dw::ThreadCallbacks, set_initial_registers) ==
                 offsetof(Dwfl_Thread_Callbacks, set_initial_registers));
  STATIC_REQUIRE(std::is_same_v<Dwarf_Addr, dw::Address>);
  STATIC_REQUIRE(std::is_same_v<Dwarf_Word, dw::Word>);
  STATIC_REQUIRE(DWARF_CB_OK == dw::goes_on);
  STATIC_REQUIRE(DWARF_CB_ABORT == dw::ends);
}
#endif
