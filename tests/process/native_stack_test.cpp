// Native stacks of real children.
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "launcher/core/diagnosis/elf_symbols.hpp"
#include "launcher/os/diagnosis/native_stack.hpp"
#include "launcher/os/diagnosis/thread_copy.hpp"
#include "tests/support/seen_child.hpp"
#include "tests/support/tracing.hpp"
#include "tests/support/uninterruptible.hpp"

#if __has_include(<elfutils/libdwfl.h>)
#include <elfutils/libdwfl.h>
#endif

using namespace torchup;
using namespace torchup::test;

extern "C" char data_start;  // a label of this program, as the linker sets it

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

std::vector<NativeThread> all_of(const dw::Library& library, const std::vector<StackTarget>& targets) {
  std::vector<NativeThread> threads;
  read_native_stacks(library, targets, [&](const NativeThread& thread) { threads.push_back(thread); });
  return threads;
}

NativeThread stack_of(const dw::Library& library, const Child& child) {
  const auto threads = all_of(library, {{child.pid(), child.pid()}});
  REQUIRE(threads.size() == 1);
  return threads[0];
}

}  // namespace

TEST_CASE("a native stack is read, and the program goes on", "[process][diagnosis]") {
  need_native_stacks();
  const dw::Library library;
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
  need_native_stacks();
  const dw::Library library;
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
    const auto threads = all_of(library, {{child.pid(), 0}});
    REQUIRE(threads.size() == native_threads_max);
    CHECK(threads[0].thread == child.pid());
    for (const NativeThread& thread : threads) CHECK(thread.problem == "");
  }
}

TEST_CASE("a stopped program is read, and stays stopped", "[process][diagnosis]") {
  need_native_stacks();
  const dw::Library library;
  const Child child{[] { ::raise(SIGSTOP); }};
  REQUIRE(reaches(child, "stopped") == "stopped");
  CHECK(stack_of(library, child).frames.size() > 1);
  CHECK(reaches(child, "stopped") == "stopped");
  ::kill(child.pid(), SIGCONT);
  CHECK(reaches(child, "ended") == "ended");
}

TEST_CASE("a thread that cannot be read says why", "[process][diagnosis]") {
  need_native_stacks();
  const dw::Library library;
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
        test::sleep_uninterruptibly([&] {
          ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // however the test ends
          *grandchild.value = ::getpid();
        });
      }};
      REQUIRE(comes([&] { return *grandchild.value != 0 && read_kernel_view(child.pid()).state == 'D'; }));
      CHECK(stack_of(library, child).problem == "it does not stop: it sleeps uninterruptibly in the kernel");
      ::kill(*grandchild.value, SIGKILL);
    }
  }
  SECTION("it is gone") {
    Child child{[] {}};
    const pid_t pid = child.pid();
    static_cast<void>(child.end());
    const auto threads = all_of(library, {{pid, 0}});
    REQUIRE(threads.size() == 1);
    CHECK(threads[0].problem == "there is no thread " + std::to_string(pid) + " of process " + std::to_string(pid));
  }
}

TEST_CASE("a thread may have an empty name", "[process][diagnosis]") {
  need_native_stacks();
  const dw::Library library;
  const Pipe pipe;
  const Child child{[&] {
    ::prctl(PR_SET_NAME, "");
    read_one(pipe.out.get());
  }};
  REQUIRE(reaches(child, "sleeping in read of a pipe") == "sleeping in read of a pipe");
  const NativeThread thread = stack_of(library, child);
  CHECK(thread.name == "");
  CHECK(thread.problem == "");
  CHECK_FALSE(thread.frames.empty());
}

TEST_CASE("a process is told of before the next one is read", "[process][diagnosis]") {
  const dw::Library none{"libdw.so.nowhere"};
  const auto life = [] { ::raise(SIGSTOP); };
  const Child first{life};
  Child second{life};
  REQUIRE(reaches(second, "stopped") == "stopped");
  const pid_t pid = second.pid();
  std::vector<std::string> problems;
  read_native_stacks(none, std::vector{StackTarget{first.pid(), first.pid()}, StackTarget{pid, 0}},
                     [&](const NativeThread& thread) {
                       problems.push_back(thread.problem);
                       if (problems.size() > 1) return;
                       ::kill(pid, SIGKILL);
                       static_cast<void>(second.end());
                     });
  REQUIRE(problems.size() == 2);
  CHECK(problems[0] == none.problem);
  CHECK(problems[1] == "there is no thread " + std::to_string(pid) + " of process " + std::to_string(pid));
}

TEST_CASE("threads that do not stop are waited for together", "[process][diagnosis]") {
  Patience patience;
  CHECK(patience.for_one() == 500ms);
  patience.spend(500ms);
  CHECK(patience.for_one() == 500ms);
  patience.spend(400ms);
  CHECK(patience.for_one() == 100ms);
  for (int i = 0; i < 32; ++i) {
    patience.spend(patience.for_one());
    CHECK(patience.for_one() == 20ms);
  }
}

TEST_CASE("no address is too large to be asked for", "[process][diagnosis]") {
  const std::string text = "what lies here";
  const auto address = reinterpret_cast<std::uint64_t>(text.data());
  CHECK(copy_memory(::getpid(), address, text.size()) == text);
  constexpr std::uint64_t last = ~std::uint64_t{0};
  for (const std::uint64_t none : {last, last - 7, last - 4095, last - 4096, last - (1 << 20), std::uint64_t{1} << 63,
                                   std::uint64_t{1} << 47, std::uint64_t{0}}) {
    CHECK(copy_memory(::getpid(), none, sizeof(dw::Word)).empty());
    CHECK(copy_memory(::getpid(), none, stack_copy_bytes).empty());
  }
}

TEST_CASE("functions have the names that libdw gives them", "[process][diagnosis]") {
  need_native_stacks();
  const dw::Library library;
  const auto none = [](dw::Module*, void**, const char*, dw::Address, const char*, const char*, std::uint32_t, char**) {
    return -1;
  };
  const dw::Callbacks callbacks{library.linux_proc_find_elf, none, nullptr, nullptr};
  dw::Session* const session = library.begin(&callbacks);
  REQUIRE(session);
  REQUIRE(library.linux_proc_report(session, ::getpid()) == 0);
  REQUIRE(library.report_end(session, nullptr, nullptr) == 0);
  for (const auto within : {reinterpret_cast<dw::Address>(&copy_memory), reinterpret_cast<dw::Address>(&::getpid),
                            reinterpret_cast<dw::Address>(&std::terminate)}) {
    dw::Module* const module = library.module_at(session, within);
    REQUIRE(module);
    dw::Address begin = 0, end = 0, bias = 0;
    const char* file = nullptr;
    REQUIRE(library.module_elf(module, &bias));
    library.module_info(module, nullptr, &begin, &end, nullptr, nullptr, &file, nullptr);
    REQUIRE(file);
    std::ifstream stream{file, std::ios::binary};
    const auto read = [&](std::uint64_t offset, std::size_t bytes) {
      std::string text(bytes, '\0');
      stream.clear();
      stream.seekg(static_cast<std::streamoff>(offset));
      stream.read(text.data(), static_cast<std::streamsize>(bytes));
      text.resize(static_cast<std::size_t>(stream.gcount()));
      return text;
    };
    std::vector<std::uint64_t> addresses;
    const dw::Address step = std::max<dw::Address>((end - begin) / 1000, 1);
    for (dw::Address at = begin; at < end; at += step) addresses.push_back(at - bias);
    const auto label = reinterpret_cast<dw::Address>(&data_start);  // and __data_start
    if (label >= begin && label < end) addresses.push_back(label + 1 - bias);
    const auto names = elf_function_names(read, addresses);
    if (!names) continue;  // a library that has them in a compressed table
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      const char* const name = library.symbol_at(module, addresses[i] + bias);
      if ((*names)[i] == (name ? name : "")) continue;
      CAPTURE(file, addresses[i]);
      CHECK((*names)[i] == (name ? name : ""));
    }
  }
  library.end(session);
}

TEST_CASE("without the library each thread says what is missing", "[process][diagnosis]") {
  const dw::Library none{"libdw.so.nowhere"};
  CHECK(none.problem == "no libdw.so.nowhere: install libdw1 (Debian) or elfutils-libs (Fedora)");
  const auto threads = all_of(none, {{::getpid(), ::getpid()}});
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
  if (!has_native_stacks()) return;
  const Pipe pipe;
  const Child child{[&] {
    ::prctl(PR_SET_PTRACER, ::getppid());  // as workers do: then whom we start may trace it
    diagnosed::Loader{}.wait_for_data(pipe.out.get(), 1.0);
  }};
  REQUIRE(reaches(child, "sleeping in read of a pipe") == "sleeping in read of a pipe");
  const std::string pid = std::to_string(child.pid());
  const Answer good = run({pid + ":" + pid});
  CHECK(good.status == 0);
  const auto threads = parse_native_text(good.out);
  REQUIRE(threads.size() == 1);
  CHECK(threads[0].thread == child.pid());
  CHECK(stands_in(threads[0], "void diagnosed::Loader::wait_for_data<…>"));
  const Answer gone = run({pid + ":1", pid + ":" + pid});
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
