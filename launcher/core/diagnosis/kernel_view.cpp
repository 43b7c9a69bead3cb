#include "launcher/core/diagnosis/kernel_view.hpp"

#include <fmt/format.h>

#include <charconv>
#include <chrono>

#include "rendezvous/core/diagnosis/rank_look.hpp"
#include "rendezvous/core/text/names.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

/// Takes the text up to the next blank or the line's end off `text`, and the blank.
std::string_view next_word(std::string_view& text) {
  const auto end = text.find_first_of(" \n");
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return word;
}

template <class Number>
bool read_number(std::string_view word, Number& number, int base = 10) {
  const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), number, base);
  return code == std::errc{} && end == word.data() + word.size();
}

bool read_hexadecimal(std::string_view word, std::uint64_t& number) {
  if (!word.starts_with("0x")) return false;
  return read_number(word.substr(2), number, 16);
}

/// The value of a line `Name:\tvalue`.
std::string_view status_value(std::string_view text, std::string_view name) {
  for (auto at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    const bool begins_line = at == 0 || text[at - 1] == '\n';
    std::string_view rest = text.substr(at + name.size());
    if (!begins_line || !rest.starts_with(":\t")) continue;
    rest.remove_prefix(2);
    return rest.substr(0, rest.find('\n'));
  }
  return {};
}

/// ` in read of /mnt/x`; ` in folio_wait_bit_common` where the call is not known; empty when nothing is.
std::string place_text(const KernelView& view, Processor processor) {
  const SystemCallKind* const kind = view.call ? system_call_kind(view.call->number, processor) : nullptr;
  if (kind) {
    return fmt::format(" in {}{}{}", kind->name, view.target.empty() ? "" : " of ", printable(view.target));
  }
  if (!view.wait_channel.empty()) return " in " + printable(view.wait_channel);
  if (view.call && view.call->number >= 0) return fmt::format(" in system call {}", view.call->number);
  return {};
}

std::string state_text(const KernelView& view, Processor processor) {
  switch (view.state) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping" + place_text(view, processor);
    case 'D':
      return "uninterruptible" + place_text(view, processor);
    case state_stopped:
      return "stopped";
    case 't':
      return "stopped by a debugger";
    case state_zombie:
    case state_dead:
      return "ended";
    case 'I':
      return "idle";
    default:
      return "in an unknown state";
  }
}

/// What was used between two looks; less than nothing is nothing: a process that took part has gone.
template <class Number>
double used(const std::optional<Number>& before, const std::optional<Number>& after) {
  if (!before || !after || *after < *before) return 0;
  return static_cast<double>(*after) - static_cast<double>(*before);
}

}  // namespace

std::optional<ThreadStat> parse_thread_stat(std::string_view text) {
  // The name stands in brackets and may hold brackets, blanks and line ends; the last bracket ends it.
  const auto bracket = text.rfind(')');
  if (bracket == std::string_view::npos || bracket + 3 >= text.size()) return std::nullopt;
  text.remove_prefix(bracket + 2);
  ThreadStat stat;
  // proc(5) counts from 1, and the state is the 3rd: parent 4, utime 14, stime 15, cutime 16, cstime 17, start 22.
  constexpr int first_field = 3, last_field = 22;
  std::array<std::string_view, last_field + 1> fields;
  for (int field = first_field; field <= last_field; ++field) fields[static_cast<std::size_t>(field)] = next_word(text);
  if (fields[3].size() != 1 || text.empty()) return std::nullopt;
  stat.state = fields[3].front();
  std::uint64_t user = 0, system = 0;
  std::int64_t children_user = 0, children_system = 0;
  const bool good = read_number(fields[4], stat.parent) && read_number(fields[14], user) &&
                    read_number(fields[15], system) && read_number(fields[16], children_user) &&
                    read_number(fields[17], children_system) && read_number(fields[22], stat.start_ticks);
  if (!good) return std::nullopt;
  stat.cpu_ticks = user + system;
  stat.children_cpu_ticks = static_cast<std::uint64_t>(children_user) + static_cast<std::uint64_t>(children_system);
  return stat;
}

ThreadStatus parse_thread_status(std::string_view text) {
  ThreadStatus status;
  read_number(status_value(text, "TracerPid"), status.tracer);
  read_number(status_value(text, "SigCgt"), status.caught_signals, 16);
  read_number(status_value(text, "SigBlk"), status.blocked_signals, 16);
  read_number(status_value(text, "SigPnd"), status.pending_signals, 16);
  std::uint64_t own = 0, forced = 0;
  if (read_number(status_value(text, "voluntary_ctxt_switches"), own) &&
      read_number(status_value(text, "nonvoluntary_ctxt_switches"), forced)) {
    status.switches = own + forced;
  }
  return status;
}

bool has_signal(std::uint64_t set, int signal) {
  return signal >= 1 && signal <= 64 && (set >> (signal - 1) & 1U) != 0;
}

std::optional<SystemCall> parse_system_call(std::string_view text) {
  SystemCall call;
  if (!read_number(next_word(text), call.number)) return std::nullopt;
  if (call.number < 0) return SystemCall{};
  for (std::uint64_t& argument : call.arguments) {
    if (!read_hexadecimal(next_word(text), argument)) return std::nullopt;
  }
  return call;
}

std::string descriptor_text(std::string_view link) {
  constexpr std::string_view anonymous = "anon_inode:";
  if (link.starts_with("pipe:[")) return "a pipe";
  if (link.starts_with("socket:[")) return "a socket";
  if (link.starts_with(anonymous)) link.remove_prefix(anonymous.size());
  return std::string{link};
}

std::optional<std::uint64_t> socket_inode(std::string_view link) {
  constexpr std::string_view front = "socket:[";
  std::uint64_t inode = 0;
  if (!link.starts_with(front) || !link.ends_with(']')) return std::nullopt;
  link = link.substr(front.size(), link.size() - front.size() - 1);
  return read_number(link, inode) ? std::optional{inode} : std::nullopt;
}

std::string kernel_text(const KernelView& view, Processor processor) {
  const std::string traced = view.tracer != 0 ? fmt::format(", traced by process {}", view.tracer) : std::string{};
  const std::string text = state_text(view, processor);
  return std::string{cut_text(text, look_kernel_bytes_max - traced.size())} + traced;
}

bool is_moving(const Activity& before, const Activity& after, Duration between, bool stack_differs) {
  if (stack_differs) return true;
  const double seconds = std::chrono::duration<double>(between).count();
  if (!(seconds > 0)) return false;
  constexpr double ns = 1e9;
  return used(before.main_ran_ns, after.main_ran_ns) >= moving_main_share_min * seconds * ns ||
         used(before.main_switches, after.main_switches) >= moving_switches_min * seconds ||
         used(before.tree_ran_ns, after.tree_ran_ns) >= moving_tree_share_min * seconds * ns ||
         used(before.tree_io_bytes, after.tree_io_bytes) >= moving_io_bytes_min * seconds;
}

}  // namespace torchup
