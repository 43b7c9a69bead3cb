#include "launcher/core/diagnosis/python_stack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>

#include "launcher/core/text/text.hpp"
#include "rendezvous/base/worker_page.hpp"
#include "rendezvous/core/diagnosis/program_frames.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

constexpr std::string_view order = " (most recent call first):";

/// All of `text` as a number.
template <class Number>
std::optional<Number> whole_number(std::string_view text, int base) {
  Number number{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  const bool whole = !text.empty() && code == std::errc{} && end == text.data() + text.size();
  return whole ? std::optional{number} : std::nullopt;
}

/// `Thread 0x00007fd394ea36c0 (most recent call first):`, from 3.14 on with `[its name]` in front of the bracket;
/// `Current thread …`; `Stack (most recent call first):`, where it was asked for one thread alone.
std::optional<PythonThread> thread_of(std::string_view line) {
  PythonThread thread;
  if (!line.ends_with(order)) return std::nullopt;
  line.remove_suffix(order.size());
  if (line == "Stack") {
    thread.current = true;
    return thread;
  }
  thread.current = take_start(line, "Current thread 0x");
  if (!thread.current && !take_start(line, "Thread 0x")) return std::nullopt;
  const auto ident = whole_number<std::uint64_t>(line.substr(0, line.find(' ')), 16);
  if (!ident) return std::nullopt;
  thread.ident = *ident;
  return thread;
}

/// `text`, of which its end counts most.
std::string end_of(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string{text};
  constexpr std::string_view mark = "...";
  return std::string{mark}.append(text.substr(text.size() - (bytes_max - mark.size())));
}

/// `  File "train.py", line 41 in main`; `  File ???, line ??? in ???` where Python knows nothing. The name may hold
/// quotes and the words between them; the last such words are Python's, for no function's name has them.
std::optional<StackFrame> frame_of(std::string_view line) {
  if (!take_start(line, "  File ")) return std::nullopt;
  constexpr std::string_view before_line = ", line ";
  constexpr std::string_view before_function = " in ";
  const auto place = line.rfind(before_line);
  if (place == std::string_view::npos) return std::nullopt;
  std::string_view file = line.substr(0, place);
  line.remove_prefix(place + before_line.size());
  const auto number = line.substr(0, line.find(before_function));
  if (number.size() == line.size()) return std::nullopt;
  StackFrame frame;
  if (number != "???") {
    const auto value = whole_number<int>(number, 10);
    if (!value || *value < 0) return std::nullopt;
    frame.line = *value;
  }
  if (file.size() >= 2 && file.starts_with('"') && file.ends_with('"')) file = file.substr(1, file.size() - 2);
  frame.file = end_of(file, look_file_bytes_max);
  frame.function = line.substr(number.size() + before_function.size()).substr(0, look_function_bytes_max);
  return frame;
}

/// Reads line by line; where the lines of a thread stand is known from its headline on.
class Reader {
 public:
  void read(std::string_view line) {
    if (take_start(line, "Fatal Python error: ")) {
      stack_ = {};
      stack_.fault = line.substr(0, python_fault_bytes_max);
      in_thread_ = false;
    } else if (auto thread = thread_of(line)) {
      begin(*std::move(thread));
    } else if (line == "...") {
      stack_.cut = true;
      in_thread_ = false;
    } else if (!line.starts_with("  ")) {
      in_thread_ = in_thread_ && line.empty();  // another headline: the stack of C functions, the modules
    } else if (in_thread_) {
      add_to(stack_.threads.back(), line);
    }
  }
  void cut() { stack_.cut = true; }
  PythonStack take_stack() { return std::move(stack_); }

 private:
  void begin(PythonThread thread) {
    in_thread_ = stack_.threads.size() < python_threads_max;
    if (in_thread_) {
      stack_.threads.push_back(std::move(thread));
    } else {
      stack_.cut = true;
    }
  }
  static void add_to(PythonThread& thread, std::string_view line) {
    auto frame = line == "  ..." ? std::nullopt : frame_of(line);
    if (line == "  ..." || (frame && thread.frames.size() == python_frames_max)) {
      thread.cut = true;
    } else if (frame) {
      thread.frames.push_back(*std::move(frame));
    }
  }

  PythonStack stack_;
  bool in_thread_ = false;
};

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

/// What stands between the last two slashes.
std::string_view folder_name(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view{} : file_name(path.substr(0, slash));
}

/// Decorators, which stand between a function of torch's and who calls it.
bool wraps(const StackFrame& frame) {
  const std::string_view name = file_name(frame.file);
  return name == "c10d_logger.py" || name == "_contextlib.py";
}

/// Of the standard library, for programs have files of that name too: proteins come in `pdb` files.
bool is_python_debugger(const StackFrame& frame) {
  const std::string_view name = file_name(frame.file);
  return (name == "pdb.py" || name == "bdb.py") && folder_name(frame.file).starts_with("python");
}

bool is_other_debugger(const StackFrame& frame) {
  std::string_view path = frame.file;
  if (file_name(path) == "pydevd.py") return true;
  for (auto slash = path.find('/'); slash != std::string_view::npos; slash = path.find('/')) {
    const std::string_view folder = path.substr(0, slash);
    if (folder == "debugpy" || folder == "pydevd" || folder.starts_with("_pydevd")) return true;
    path.remove_prefix(slash + 1);
  }
  return false;
}

}  // namespace

PythonStack parse_python_stack(std::string_view sheet) {
  Reader reader;
  // What was wiped is zeros: the answer ends there.
  const std::string_view text = sheet.substr(0, std::min(worker_sheet_bytes, sheet.find('\0')));
  std::size_t at = 0;
  for (auto end = text.find('\n'); end != std::string_view::npos; end = text.find('\n', at)) {
    reader.read(text.substr(at, end - at));
    at = end + 1;
  }
  if (at < text.size() || text.size() == worker_sheet_bytes) reader.cut();
  return reader.take_stack();
}

const PythonThread* main_thread(const PythonStack& stack, bool helper_wrote) {
  if (stack.cut) return nullptr;
  const auto is_helper = [&](const PythonThread& thread) {
    return helper_wrote && thread.current && stack.fault.empty();
  };
  const auto found = std::find_if_not(stack.threads.rbegin(), stack.threads.rend(), is_helper);
  return found == stack.threads.rend() ? nullptr : &*found;
}

std::vector<StackFrame> told_frames(std::span<const StackFrame> frames) {
  std::vector<StackFrame> told;
  std::ranges::copy_if(frames, std::back_inserter(told), [](const StackFrame& frame) { return !wraps(frame); });
  keep_frames(told, told_frames_max);
  return told;
}

std::string frame_text(const StackFrame& frame) {
  const std::string name{file_name(frame.file)};
  return printable(fmt::format("{}:{} {}", name, frame.line, frame.function));
}

std::vector<std::string> crash_lines(const PythonStack& stack) {
  if (stack.fault.empty()) return {};
  std::vector<std::string> lines{printable(stack.fault)};
  const auto thread = std::ranges::find(stack.threads, true, &PythonThread::current);
  if (thread == stack.threads.end()) return lines;
  for (const StackFrame& frame : thread->frames) {
    lines.push_back(printable(fmt::format("{}:{} {}", frame.file, frame.line, frame.function)));
  }
  return lines;
}

bool is_debugged(const PythonStack& stack, const PythonThread* main) {
  const auto pythons = [](const PythonThread& thread) {
    return std::ranges::any_of(thread.frames, is_python_debugger);
  };
  return std::ranges::any_of(stack.threads, pythons) || (main && std::ranges::any_of(main->frames, is_other_debugger));
}

}  // namespace torchup
