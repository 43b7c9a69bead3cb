#include "launcher/core/diagnosis/native_text.hpp"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "launcher/core/text/text.hpp"
#include "rendezvous/core/diagnosis/rank_look.hpp"
#include "rendezvous/core/text/names.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

constexpr std::string_view before_frame = "  ";
constexpr std::string_view before_problem = "  !";
constexpr std::string_view more_frames = "  ...";

std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc{} || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::optional<NativeThread> headline_of(std::string_view line) {
  NativeThread thread;
  if (!take_start(line, "thread ")) return std::nullopt;
  const auto id = take_number(line);
  if (!id || !take_start(line, " of process ")) return std::nullopt;
  const auto process = take_number(line);
  if (!process || !take_start(line, ", ")) return std::nullopt;
  thread.thread = *id;
  thread.process = *process;
  thread.name = cut_text(line, look_native_bytes_max);
  return thread;
}

void add_line(NativeThread& thread, std::string_view line) {
  if (line == more_frames) {
    thread.cut = true;
  } else if (take_start(line, before_problem)) {
    thread.problem = cut_text(line, look_native_bytes_max);
  } else if (take_start(line, before_frame)) {
    if (thread.frames.size() == native_frames_max) {
      thread.cut = true;
    } else {
      thread.frames.emplace_back(cut_text(line, look_native_bytes_max));
    }
  }
}

/// The last `operator` that stands alone: what follows are no brackets of arguments.
bool names_operator(std::string_view before) {
  constexpr std::string_view word = "operator";
  if (!before.ends_with(word)) return false;
  before.remove_suffix(word.size());
  return before.empty() || before.ends_with(':') || before.ends_with(' ');
}

/// Without the arguments in the round brackets that end it, and without what is in angle brackets.
std::string short_function(std::string_view function) {
  std::string text;
  int angles = 0, rounds = 0;
  for (std::size_t at = 0; at < function.size(); ++at) {
    const char c = function[at];
    const bool outside = angles == 0 && rounds == 0;
    if (outside && names_operator(text)) {  // operator(), operator<<, operator->
      const auto symbols = function.substr(at).find_first_not_of("()<>-=!+*/%^&|~[],");
      const std::string_view rest = function.substr(at, symbols);
      const std::string_view name = rest.substr(0, rest.starts_with("()") ? 2 : rest.find('('));
      if (!name.empty()) {
        text += name;
        at += name.size() - 1;
        continue;
      }
    }
    if (outside && function.substr(at).starts_with("(anonymous namespace)")) {
      constexpr std::size_t length = 21;
      text += function.substr(at, length);
      at += length - 1;
    } else if (c == '<' && rounds == 0) {
      if (angles++ == 0) text += "<…>";
    } else if (c == '>' && rounds == 0 && angles > 0) {
      --angles;
    } else if (c == '(' && angles == 0) {
      ++rounds;
    } else if (c == ')' && rounds > 0 && angles == 0) {
      --rounds;
    } else if (outside) {
      text += c;
    }
  }
  return text;
}

}  // namespace

std::string to_text(const NativeThread& thread) {
  std::string text =
      fmt::format("thread {} of process {}, {}\n", thread.thread, thread.process, printable(thread.name));
  for (const std::string& frame : thread.frames) text += fmt::format("{}{}\n", before_frame, printable(frame));
  if (thread.cut) text += fmt::format("{}\n", more_frames);
  if (!thread.problem.empty()) text += fmt::format("{}{}\n", before_problem, printable(thread.problem));
  return text;
}

std::vector<NativeThread> parse_native_text(std::string_view text) {
  text = text.substr(0, native_text_bytes_max);
  std::vector<NativeThread> threads;
  for (auto end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (auto thread = headline_of(line)) {
      if (threads.size() == native_threads_max) break;
      threads.push_back(*std::move(thread));
    } else if (!threads.empty()) {
      add_line(threads.back(), line);
    }
  }
  return threads;
}

std::string native_frame_text(std::string_view function, std::string_view module, std::uint64_t address) {
  const std::string_view file = module.substr(module.rfind('/') + 1);
  const std::string name = function.empty() ? fmt::format("0x{:x}", address) : short_function(function);
  // Cut behind the escapes, each of which takes four bytes for one.
  const std::string behind =
      file.empty() ? std::string{} : fmt::format(" ({})", cut_text(printable(cut_text(file, 64)), 64));
  return std::string{cut_text(printable(name), look_native_bytes_max - behind.size())} + behind;
}

std::string refusal_text(const TraceRules& rules) {
  if (rules.tracer != 0) return fmt::format("process {} traces it already", rules.tracer);
  const std::string_view front = "ptrace is refused: ";
  if (rules.yama_scope > 2)
    return fmt::format("{}kernel.yama.ptrace_scope is 3, until the machine's next start", front);
  if (rules.yama_scope > 0) {
    return fmt::format("{}kernel.yama.ptrace_scope is {} (needs CAP_SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=0)",
                       front, rules.yama_scope);
  }
  if (!rules.own_user) return fmt::format("{}it runs as another user (needs CAP_SYS_PTRACE)", front);
  if (rules.filtered) return fmt::format("{}a seccomp filter (container: --cap-add=SYS_PTRACE)", front);
  return fmt::format("{}needs CAP_SYS_PTRACE (container: --cap-add=SYS_PTRACE)", front);
}

}  // namespace torchup
