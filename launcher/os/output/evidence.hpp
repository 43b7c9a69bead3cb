#pragma once

#include <sys/types.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/record/error_file.hpp"
#include "launcher/core/record/incident.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

/// What the system knows about a death: cgroup counters, kernel log, core files, error files. Every function reads
/// small files and answers "nothing" where it may not.
namespace torchup {

/// What is compared before and after; take one at each attempt's start.
class DeathBaseline {
 public:
  /// Marks the end of the kernel's log: what comes behind it belongs to the attempt. Takes some microseconds.
  DeathBaseline();
  /// Notes the kernel's counters.
  void count();

  /// Evidence for the death of `pid` since then; without the parts that come from output and error file. Once: it reads
  /// the kernel's log on from the mark. A log that was full before (a record costs a system call) costs nothing.
  [[nodiscard]] DeathEvidence collect(pid_t pid, int exit_code);

  /// The next attempt begins: what the kernel's log holds from now on is not evidence of this one, however late it is
  /// collected. Any thread.
  void next_attempt();

 private:
  bool is_next_attempt_s(std::int64_t number);

  UniqueFd kernel_log_;                               ///< none: we may not read it
  std::mutex mutex_;                                  ///< of the next two
  UniqueFd next_attempt_;                             ///< where its part of the log begins; none: it has not begun
  std::optional<std::int64_t> next_attempt_s_first_;  ///< number of the first record there, once there is one
  std::optional<std::int64_t> oom_kills_;             ///< in our memory cgroup
  std::optional<std::int64_t> machine_oom_kills_;     ///< on the machine
};

/// Reads a worker's error file: a regular file of ours or of the owner of its directory, no link followed, at most
/// error_file_bytes_max. Returns its bytes; empty when there is none. Waits for the disk.
/// Errors: the system's; errc::limit_exceeded when larger; errc::refused when it is no regular file of ours.
[[nodiscard]] Result<std::optional<std::string>> read_error_file(const std::string& path);

/// What a worker has left in its error file.
struct LastWords {
  std::optional<std::string> bytes = {};  ///< as read; nothing: there is no such file, or it is of no use
  std::optional<WorkerError> error = {};  ///< what they mean
  std::string problem = {};               ///< why the file is of no use; empty when it is, or when there is none
};
/// Reads and parses it. Waits for the disk.
[[nodiscard]] LastWords read_last_words(const std::string& path);

/// `sleeping in futex_wait`, `running`, `stopped`, `uninterruptible in nfs_…`, `gone`: from /proc.
[[nodiscard]] std::string process_state(pid_t pid);

/// `2026-11-21_04:03:58` in this machine's time zone.
[[nodiscard]] std::string local_time_text(std::int64_t utc_us);

}  // namespace torchup
