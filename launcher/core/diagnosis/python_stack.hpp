#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/core/diagnosis/rank_look.hpp"

/// What Python's faulthandler has written about a worker, read back. The worker's own code shares the sheet with it, so
/// every byte is a stranger's: whatever it holds, the result stays within these limits, and nothing throws.
namespace torchup {

inline constexpr std::size_t python_threads_max = 100;  ///< faulthandler itself writes no more
inline constexpr std::size_t python_frames_max = 100;   ///< of one thread; likewise
inline constexpr std::size_t python_fault_bytes_max = 128;
inline constexpr std::size_t told_frames_max = 6;  ///< of a rank, on the page

struct PythonThread {
  std::uint64_t ident = 0;         ///< pthread_self(), as threading.get_ident() gives it; no thread id of the kernel's
  bool current = false;            ///< the thread whose signal handler wrote this
  std::vector<StackFrame> frames;  ///< innermost first, their texts cut to look_*_bytes_max; empty: it runs no Python
  bool cut = false;                ///< further frames were left out
  friend bool operator==(const PythonThread&, const PythonThread&) = default;
};

/// One answer of faulthandler.
struct PythonStack {
  std::string fault;                  ///< `Segmentation fault`: it was written by a crash; empty: it was asked for
  std::vector<PythonThread> threads;  ///< newest first: Python puts a new thread at the head of its list
  bool cut = false;                   ///< threads are missing: Python's limit or the sheet's, or ours
  friend bool operator==(const PythonStack&, const PythonStack&) = default;
};

/// Reads an answer of Python 3.8 to 3.14, worker_sheet_bytes of it at most. Lines that are none of faulthandler's are
/// passed over, and so are bytes with which it never begins a line; a last line without its end was cut and does not
/// count. Where a crash was written behind an answer, the crash is what counts.
///
/// Source: Python/traceback.c, _Py_DumpTracebackThreads; Modules/faulthandler.c.
[[nodiscard]] PythonStack parse_python_stack(std::string_view sheet);

/// The program's main thread: the last that is not the hook's helper. `helper_wrote`: the helper was asked, and so it
/// is the one that wrote, but in a crash; its id in the page is the kernel's and tells nothing here. Null where threads
/// are missing, for it would be the last of them, and where there is none.
[[nodiscard]] const PythonThread* main_thread(const PythonStack& stack, bool helper_wrote);

/// The frames to tell, innermost first: at most told_frames_max (as keep_frames of program_frames.hpp has it), without
/// those that wrap a function of torch's and do nothing themselves.
[[nodiscard]] std::vector<StackFrame> told_frames(std::span<const StackFrame> frames);

/// `data.py:88 read_shard`: the file without its folders, in one printable line.
[[nodiscard]] std::string frame_text(const StackFrame& frame);

/// What a crash has left: the fault, then the frames of the thread in which it was, innermost first, as
/// `file:line function` in one printable line each. Empty where it was none.
[[nodiscard]] std::vector<std::string> crash_lines(const PythonStack& stack);

/// Whether a debugger is at work: Python's own in any thread, debugpy or pydevd in this one. (Theirs have threads of
/// their own, which are there while nobody debugs.) `main` may be null.
[[nodiscard]] bool is_debugged(const PythonStack& stack, const PythonThread* main);

}  // namespace torchup
