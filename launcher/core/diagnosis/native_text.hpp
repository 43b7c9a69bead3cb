#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// What `torchup-stack` prints, both ways: its agent reads what it has written.
namespace torchup {

inline constexpr std::size_t native_threads_max = 32;  ///< in one answer; further ones are left out
inline constexpr std::size_t native_frames_max = 64;   ///< of one thread
/// More of an answer is not read.
inline constexpr std::size_t native_text_bytes_max = std::size_t{1} << 20;

struct NativeThread {
  std::int64_t process = 0;
  std::int64_t thread = 0;
  std::string name;                 ///< as the program has named it
  std::vector<std::string> frames;  ///< innermost first: `pthread_cond_wait (libc.so.6)`
  bool cut = false;                 ///< further frames were left out
  std::string problem;              ///< why there are no frames, one line; empty: there are
  friend bool operator==(const NativeThread&, const NativeThread&) = default;
};

/// `thread 4243 of process 4242, pt_main_thread`, and a line for each frame or one for the problem, further in.
[[nodiscard]] std::string to_text(const NativeThread& thread);

/// Lines that are none of to_text's are passed over; what goes beyond the limits is left out.
[[nodiscard]] std::vector<NativeThread> parse_native_text(std::string_view text);

/// `c10d::Reducer::prepare_for_backward (libtorch_cpu.so)`: the function without its arguments and with its templates'
/// ones as `<…>`, for they take lines; in one printable line of at most look_native_bytes_max bytes. `function` may be
/// empty: then the frame's address stands for it.
[[nodiscard]] std::string native_frame_text(std::string_view function, std::string_view module, std::uint64_t address);

/// What decides whether one process may read another.
struct TraceRules {
  std::int64_t tracer = 0;  ///< who traces it already; 0: nobody
  int yama_scope = 0;       ///< /proc/sys/kernel/yama/ptrace_scope
  bool own_user = true;     ///< it runs as the user that we are, or we may trace all
  bool filtered = false;    ///< a seccomp filter is upon us
};

/// Why ptrace was refused, and what lets it: `ptrace is refused: kernel.yama.ptrace_scope is 2 (needs CAP_SYS_PTRACE)`.
[[nodiscard]] std::string refusal_text(const TraceRules& rules);

}  // namespace torchup
