#include "launcher/os/diagnosis/thread_copy.hpp"

#include <dirent.h>
#include <elf.h>
#include <fmt/format.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "launcher/core/diagnosis/kernel_view.hpp"
#include "launcher/core/diagnosis/native_text.hpp"
#include "launcher/os/io/read_text.hpp"

namespace torchup {
namespace {

std::string system_text(const char* what) { return fmt::format("{}: {}", what, std::strerror(errno)); }

TraceRules trace_rules(pid_t process, pid_t thread) {
  TraceRules rules;
  rules.tracer = parse_thread_status(read_text(fmt::format("/proc/{}/task/{}/status", process, thread))).tracer;
  const std::string scope = read_text("/proc/sys/kernel/yama/ptrace_scope");
  std::from_chars(scope.data(), scope.data() + scope.size(), rules.yama_scope);
  rules.filtered = read_text("/proc/self/status").find("\nSeccomp:\t2") != std::string::npos;
  // The links of a process may be read by whom the kernel lets read its memory, apart from Yama's rules.
  rules.own_user = ::access(fmt::format("/proc/{}/fd", process).c_str(), R_OK) == 0;
  return rules;
}

/// What a wait for a stop has given.
struct Stop {
  bool stopped = false;
  int signal = 0;  ///< that was on its way to the thread, and is to be given to it when it goes on
  std::string problem;
};

Stop wait_for_stop(pid_t thread, Duration limit) {
  const TimePoint end = std::chrono::steady_clock::now() + limit;
  Duration pause = std::chrono::microseconds{20};
  while (true) {
    int status = 0;
    const pid_t found = ::waitpid(thread, &status, __WALL | WNOHANG);
    if (found < 0 && errno != EINTR) return {.problem = system_text("waitpid")};
    if (found == thread) {
      if (!WIFSTOPPED(status)) return {.problem = "it has ended"};
      const bool is_our_stop = status >> 16 == PTRACE_EVENT_STOP;
      return {.stopped = true, .signal = is_our_stop ? 0 : WSTOPSIG(status), .problem = {}};
    }
    if (std::chrono::steady_clock::now() > end) {
      return {.problem = "it does not stop: it sleeps uninterruptibly in the kernel"};
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<Duration>(2 * pause, std::chrono::milliseconds{1});
  }
}

void read_registers(pid_t thread, ThreadCopy& copy) {
  user_regs_struct all{};
  iovec place{&all, sizeof all};
  if (::ptrace(PTRACE_GETREGSET, thread, NT_PRSTATUS, &place) != 0) {
    copy.problem = system_text("PTRACE_GETREGSET");
    return;
  }
#if defined(__x86_64__)
  copy.registers = {all.rax, all.rdx, all.rcx, all.rbx, all.rsi, all.rdi, all.rbp, all.rsp, all.r8,
                    all.r9,  all.r10, all.r11, all.r12, all.r13, all.r14, all.r15, all.rip};
  copy.instruction = all.rip;
  copy.stack_begin = all.rsp;
#elif defined(__aarch64__)
  std::copy(std::begin(all.regs), std::end(all.regs), copy.registers.begin());
  copy.registers.back() = all.sp;
  copy.instruction = all.pc;
  copy.stack_begin = all.sp;
#else
  copy.problem = "stacks of this processor are not read";
#endif
}

}  // namespace

std::vector<pid_t> threads_of(pid_t process) {
  std::vector<pid_t> threads;
  DIR* const folder = ::opendir(fmt::format("/proc/{}/task", process).c_str());
  while (const dirent* entry = folder && threads.size() < threads_max ? ::readdir(folder) : nullptr) {
    const std::string_view name = entry->d_name;
    pid_t thread = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), thread).ec == std::errc{}) threads.push_back(thread);
  }
  if (folder) ::closedir(folder);
  return threads;
}

std::string copy_memory(pid_t process, std::uint64_t address, std::size_t bytes) {
  constexpr std::uint64_t page_bytes = 4096;
  // The last page of all addresses is nobody's: what would reach it, or beyond, ends before.
  constexpr std::uint64_t addresses_end = ~std::uint64_t{0} - (page_bytes - 1);
  if (address >= addresses_end) return {};
  bytes = std::min<std::uint64_t>(bytes, addresses_end - address);
  std::string text(bytes, '\0');
  // A piece is copied whole or not at all.
  std::vector<iovec> pieces;
  for (std::size_t done = 0; done < bytes;) {
    const std::uint64_t at = address + done;
    const std::size_t length = std::min<std::uint64_t>(bytes - done, page_bytes - at % page_bytes);
    pieces.push_back({reinterpret_cast<void*>(at), length});  // NOLINT(performance-no-int-to-ptr)
    done += length;
  }
  iovec local{text.data(), bytes};
  const ssize_t count = ::process_vm_readv(process, &local, 1, pieces.data(), pieces.size(), 0);
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return text;
}

ThreadCopy copy_thread(pid_t process, pid_t thread, Patience& patience) {
  ThreadCopy copy;
  if (::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0) {
    const int error = errno;
    copy.problem = error == EPERM   ? refusal_text(trace_rules(process, thread))
                   : error == ESRCH ? "it is gone"
                                    : system_text("PTRACE_SEIZE");
    return copy;
  }
  if (::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) != 0) {
    copy.problem = system_text("PTRACE_INTERRUPT");
    return copy;
  }
  const TimePoint begin = std::chrono::steady_clock::now();
  const Stop stop = wait_for_stop(thread, patience.for_one());
  patience.spend(std::chrono::steady_clock::now() - begin);
  copy.problem = stop.problem;
  if (!stop.stopped) return copy;
  read_registers(thread, copy);
  if (copy.problem.empty()) copy.stack = copy_memory(process, copy.stack_begin, stack_copy_bytes);
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  ::ptrace(PTRACE_DETACH, thread, nullptr, reinterpret_cast<void*>(static_cast<std::intptr_t>(stop.signal)));
  return copy;
}

}  // namespace torchup
