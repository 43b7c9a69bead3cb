#include "launcher/os/diagnosis/worker_view.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>

#include "launcher/core/diagnosis/socket_table.hpp"
#include "launcher/os/diagnosis/thread_copy.hpp"
#include "launcher/os/io/read_text.hpp"
#include "rendezvous/core/diagnosis/rank_look.hpp"

namespace torchup {
namespace {

constexpr std::size_t proc_text_bytes_max = 16 * 1024;

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

/// Memory is read under a lock that such a thread may hold, waiting for a file server.
bool another_sleeps_uninterruptibly(pid_t pid) {
  return std::ranges::any_of(threads_of(pid), [pid](pid_t thread) {
    if (thread == pid) return false;
    const auto stat = parse_thread_stat(read_task(pid, thread, "stat"));
    return stat && stat->state == 'D';
  });
}

std::string path_at(pid_t pid, std::uint64_t address) {
  const std::string text = copy_memory(pid, address, look_kernel_bytes_max);
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
  const std::string bytes = copy_memory(pid, address, sizeof(pollfd));
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

/// Whether the thread sleeps until a signal comes, which its program would take for the one that it waits for. A set
/// that cannot be read may be any.
bool waits_for_signal(pid_t process, pid_t thread, int signal) {
  const auto call = parse_system_call(read_task(process, thread, "syscall"));
  const SystemCallKind* const kind = call ? system_call_kind(call->number, own_processor()) : nullptr;
  if (!kind) return false;
  if (kind->name == "pause" || kind->name == "rt_sigsuspend") return true;
  if (kind->name != "rt_sigtimedwait") return false;
  std::uint64_t set = 0;
  const bool readable = !another_sleeps_uninterruptibly(process);
  const std::string bytes = readable ? copy_memory(process, call->arguments[0], sizeof set) : std::string{};
  if (bytes.size() != sizeof set) return true;
  std::memcpy(&set, bytes.data(), sizeof set);
  return has_signal(set, signal);
}

/// Sends a signal to a thread that will run its handler for it, and once: it waits where it was sent before. False: it
/// would do something else with it.
bool signal_thread(pid_t process, pid_t thread, int signal) {
  const ThreadStatus status = parse_thread_status(read_task(process, thread, "status"));
  if (!has_signal(status.caught_signals, signal) || has_signal(status.blocked_signals, signal)) return false;
  if (has_signal(status.pending_signals, signal)) return true;
  return !waits_for_signal(process, thread, signal) && ::syscall(SYS_tgkill, process, thread, signal) == 0;
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
  const auto main = writer.process;
  if (writer.helper > 0 && writer.helper != main && signal_thread(main, writer.helper, writer.signal))
    return StackAsked::helper;
  // To no other thread, which may wait for this very signal.
  return signal_thread(main, main, writer.signal) ? StackAsked::main : StackAsked::no;
}

}  // namespace torchup
