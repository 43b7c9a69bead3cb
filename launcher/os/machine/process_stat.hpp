#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace torchup {

/// What /proc/<pid>/stat says of a process.
struct ProcessStat {
  char state = '?';  ///< 'R', 'S', 'D', 'T', 'Z', …
  pid_t parent = 0;
  std::uint64_t start_time =
      0;  ///< in clock ticks since the start of the machine: with the pid it is unique until then
};

/// Nothing: there is no such process. A zombie is one.
[[nodiscard]] std::optional<ProcessStat> process_stat(pid_t pid);

}  // namespace torchup
