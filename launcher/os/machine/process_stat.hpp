#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace torchup {

/// What /proc/<pid>/stat says of a process.
struct ProcessStat {
  char state = '?';  ///< 'R', 'S', 'D', 'T', 'Z', …
  pid_t parent = 0;
  pid_t group = 0;       ///< of processes
  dev_t terminal = 0;    ///< its controlling one; 0: it has none
  pid_t foreground = 0;  ///< group of processes that has the terminal
  std::uint64_t start_time =
      0;  ///< in clock ticks since the start of the machine: with the pid it is unique until then
};

/// Nothing: there is no such process. A zombie is one.
[[nodiscard]] std::optional<ProcessStat> process_stat(pid_t pid);

struct ProcessUse {
  double cpu_s = 0;                  ///< user and system, of all its threads
  std::uint64_t resident_bytes = 0;  ///< of its memory, in RAM
};
/// Nothing: there is no such process, or it cannot be seen.
[[nodiscard]] std::optional<ProcessUse> process_use(pid_t pid);

/// 0: it cannot be seen.
[[nodiscard]] pid_t parent_of(pid_t pid);
/// With a zero byte behind each word; of a longer one `bytes_max` bytes. Empty: it cannot be seen.
[[nodiscard]] std::string command_line(pid_t pid, std::size_t bytes_max);

}  // namespace torchup
