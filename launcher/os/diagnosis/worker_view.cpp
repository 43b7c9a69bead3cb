#include "launcher/os/diagnosis/worker_view.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "launcher/core/diagnosis/socket_table.hpp"
#include "launcher/os/io/read_text.hpp"
#include "rendezvous/core/diagnosis/rank_look.hpp"

namespace torchup {
namespace {

constexpr std::size_t proc_text_bytes_max = 16 * 1024;
constexpr std::size_t threads_max = 4096;  ///< further ones of a process are not looked at

std::string read_proc(pid_t pid, const char* file) {
  return read_text(fmt::format("/proc/{}/{}", pid, file), proc_text_bytes_max);
}

/// Of one thread: main threads have their process's id.
std::string read_task(pid_t pid, pid_t thread, const char* file) {
  return read_text(fmt::format("/proc/{}/task/{}/{}", pid, thread, file), proc_text_bytes_max);
}

template <class Number>
std::optional<Number> first_number(std::string_view text) {
  Number number{};
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc{} ? std::optional{number} : std::nullopt;
}

std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> threads;
  DIR* const folder = ::opendir(fmt::format("/proc/{}/task", pid).c_str());
  while (const dirent* entry = folder ? ::readdir(folder) : nullptr) {
    const auto thread = first_number<pid_t>(entry->d_name);
    if (thread && threads.size() < threads_max) threads.push_back(*thread);
  }
  if (folder) ::closedir(folder);
  return threads;
}

/// Memory is read under a lock that such a thread may hold, waiting for a file server.
bool another_sleeps_uninterruptibly(pid_t pid) {
  return std::ranges::any_of(threads_of(pid), [pid](pid_t thread) {
    if (thread == pid) return false;
    const auto stat = parse_thread_stat(read_task(pid, thread, "stat"));
    return stat && stat->state == 'D';
  });
}

/// As many bytes at `address` of another process as there are; empty when it may not be read.
std::string read_memory(pid_t pid, std::uint64_t address, std::size_t bytes) {
  std::string text(bytes, '\0');
  // What lies in another page may not be there: a piece is read whole or not at all.
  constexpr std::uint64_t page_bytes = 4096;
  const std::size_t in_first = std::min<std::size_t>(bytes, page_bytes - address % page_bytes);
  iovec local{text.data(), bytes};
  std::array<iovec, 2> remote{};
  remote[0] = {reinterpret_cast<void*>(address), in_first};                     // NOLINT(performance-no-int-to-ptr)
  remote[1] = {reinterpret_cast<void*>(address + in_first), bytes - in_first};  // NOLINT(performance-no-int-to-ptr)
  const ssize_t count = ::process_vm_readv(pid, &local, 1, remote.data(), in_first < bytes ? 2 : 1, 0);
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return text;
}

std::string path_at(pid_t pid, std::uint64_t address) {
  const std::string text = read_memory(pid, address, look_kernel_bytes_max);
  return text.substr(0, text.find('\0'));
}

std::string socket_text(pid_t pid, std::uint64_t inode) {
  const auto list = [pid](const char* name) {
    return read_text(fmt::format("/proc/{}/net/{}", pid, name), socket_table_bytes_max);
  };
  for (const char* name : {"tcp", "tcp6", "udp", "udp6"}) {
    if (const auto peer = internet_peer(list(name), inode)) return *peer;
  }
  return unix_path(list("unix"), inode).value_or("a socket");
}

std::string descriptor_target(pid_t pid, std::uint64_t argument) {
  const auto descriptor = static_cast<int>(argument & 0xffffffffU);
  if (descriptor < 0) return {};
  std::array<char, 4096> link{};
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, descriptor);
  const ssize_t size = ::readlink(path.c_str(), link.data(), link.size());
  if (size <= 0) return {};
  const std::string_view text{link.data(), static_cast<std::size_t>(size)};
  const auto inode = socket_inode(text);
  return inode ? socket_text(pid, *inode) : descriptor_text(text);
}

std::string list_target(pid_t pid, std::uint64_t address, std::uint64_t count) {
  if (count != 1) return fmt::format("{} descriptors", count);
  const std::string bytes = read_memory(pid, address, sizeof(pollfd));
  if (bytes.size() != sizeof(pollfd)) return {};
  pollfd one{};
  bytes.copy(reinterpret_cast<char*>(&one), sizeof one);
  return descriptor_target(pid, static_cast<std::uint32_t>(one.fd));
}

std::string process_target(const SystemCall& call, std::size_t place) {
  // waitid has the kind of id in front.
  if (place == 1 && call.arguments[0] != P_PID) return {};
  const auto process = static_cast<pid_t>(call.arguments[place] & 0xffffffffU);
  return process > 0 ? fmt::format("process {}", process) : std::string{};
}

std::string target_of(pid_t pid, const SystemCall& call) {
  const SystemCallKind* const kind = system_call_kind(call.number, own_processor());
  if (!kind) return {};
  const auto place = static_cast<std::size_t>(kind->place);
  switch (kind->argument) {
    case Argument::none:
      return {};
    case Argument::descriptor:
      return descriptor_target(pid, call.arguments[place]);
    case Argument::process:
      return process_target(call, place);
    case Argument::path:
      return another_sleeps_uninterruptibly(pid) ? std::string{} : path_at(pid, call.arguments[place]);
    case Argument::descriptor_list:
      return another_sleeps_uninterruptibly(pid) ? std::string{}
                                                 : list_target(pid, call.arguments[place], call.arguments[place + 1]);
  }
  return {};
}

/// A line `rchar: 123` of /proc/PID/io.
std::uint64_t io_value(std::string_view text, std::string_view name) {
  const auto at = text.find(name);
  return at == std::string_view::npos ? 0 : first_number<std::uint64_t>(text.substr(at + name.size())).value_or(0);
}

void add_children(pid_t pid, std::vector<pid_t>& tree) {
  for (const pid_t thread : threads_of(pid)) {
    const std::string text = read_task(pid, thread, "children");
    const char* const end = text.data() + text.size();
    for (const char* at = text.data(); at < end && tree.size() < tree_processes_max; ++at) {
      pid_t child = 0;
      const auto [next, code] = std::from_chars(at, end, child);
      if (code != std::errc{}) break;
      tree.push_back(child);
      at = next;
    }
  }
}

}  // namespace

Processor own_processor() {
#if defined(__x86_64__)
  return Processor::x86_64;
#elif defined(__aarch64__)
  return Processor::aarch64;
#else
  return Processor::other;
#endif
}

KernelView read_kernel_view(pid_t pid, KernelDetail detail) {
  KernelView view;
  const auto stat = parse_thread_stat(read_task(pid, pid, "stat"));
  if (!stat) return view;
  view.state = stat->state;
  view.tracer = parse_thread_status(read_task(pid, pid, "status")).tracer;
  if (view.state != 'S' && view.state != 'D') return view;
  view.call = parse_system_call(read_task(pid, pid, "syscall"));
  if (view.call && detail == KernelDetail::whole) view.target = target_of(pid, *view.call);
  view.wait_channel = read_task(pid, pid, "wchan");
  if (view.wait_channel == "0") view.wait_channel.clear();
  return view;
}

char thread_state(pid_t process, pid_t thread) {
  const auto stat = parse_thread_stat(read_task(process, thread, "stat"));
  return stat ? stat->state : '?';
}

std::vector<pid_t> process_tree(pid_t pid) {
  std::vector<pid_t> tree{pid};
  for (std::size_t next = 0; next < tree.size(); ++next) add_children(tree[next], tree);
  return tree;
}

Activity read_activity(pid_t pid, const std::vector<pid_t>& tree) {
  Activity activity;
  // time on CPUs in ns, time in their queues, turns
  activity.main_ran_ns = first_number<std::int64_t>(read_task(pid, pid, "schedstat"));
  activity.main_switches = parse_thread_status(read_task(pid, pid, "status")).switches;
  const std::int64_t tick_ns = 1'000'000'000 / std::max(::sysconf(_SC_CLK_TCK), 1L);
  for (const pid_t each : tree) {
    if (const auto stat = parse_thread_stat(read_proc(each, "stat"))) {
      const auto ticks = static_cast<std::int64_t>(stat->cpu_ticks + stat->children_cpu_ticks);
      activity.tree_ran_ns = activity.tree_ran_ns.value_or(0) + ticks * tick_ns;
    }
    const std::string io = read_proc(each, "io");
    if (io.empty()) continue;
    activity.tree_io_bytes = activity.tree_io_bytes.value_or(0) + io_value(io, "rchar: ") + io_value(io, "wchar: ");
  }
  return activity;
}

StackAsked ask_for_stack(pid_t worker, const StackWriter& writer) {
  const bool known = writer.process > 1 && writer.signal >= stack_signal_min && writer.signal <= stack_signal_max;
  if (!known || ::getsid(writer.process) != worker) return StackAsked::no;
  const std::uint64_t caught = parse_thread_status(read_proc(writer.process, "status")).caught_signals;
  if ((caught >> (writer.signal - 1) & 1U) == 0) return StackAsked::no;
  if (writer.helper > 0 && ::syscall(SYS_tgkill, writer.process, writer.helper, writer.signal) == 0) {
    return StackAsked::helper;
  }
  return ::kill(writer.process, writer.signal) == 0 ? StackAsked::process : StackAsked::no;
}

}  // namespace torchup
