#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/record/error_file.hpp"
#include "launcher/core/record/incident.hpp"
#include "rendezvous/base/result.hpp"

/// What the system knows about a death: cgroup counters, kernel log, core files, error files. Every function reads
/// small files and answers "nothing" where it may not.
namespace torchup {

/// Counters to compare before and after; take one at each attempt's start.
struct DeathBaseline {
  std::optional<std::int64_t> oom_kills;          ///< in our memory cgroup
  std::optional<std::int64_t> machine_oom_kills;  ///< on the machine
  std::int64_t kernel_log_us = 0;                 ///< time since boot; older kernel lines are not ours
};
[[nodiscard]] DeathBaseline death_baseline();

/// Evidence for the death of `pid` since `baseline`; without the parts that come from output and error file.
[[nodiscard]] DeathEvidence collect_evidence(pid_t pid, int exit_code, const DeathBaseline& baseline);

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
