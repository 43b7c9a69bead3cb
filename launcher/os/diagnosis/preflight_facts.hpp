#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/diagnosis/preflight.hpp"

/// What preflight looks at on this machine: one function a source, each gives nothing where nothing is known. Those
/// about disks may wait for one: they are for a thread of their own.
namespace torchup {

/// Free in /dev/shm.
[[nodiscard]] std::optional<std::int64_t> shm_free_bytes();
/// Of open files, as it is; nothing: without a limit.
[[nodiscard]] std::optional<std::int64_t> nofile_limit();
[[nodiscard]] std::optional<std::int64_t> memlock_limit();
[[nodiscard]] bool has_infiniband();
/// Processes and threads that may still be started, by the tightest cgroup above us and the user's limit (of which
/// those that run already are not counted: it takes too long).
[[nodiscard]] std::optional<std::int64_t> pids_left();

/// What a folder is on: one that is not made yet is looked at where it will be. `synced`: 4 KiB are also brought to the
/// disk, fsync_tries times.
[[nodiscard]] DiskFacts look_at_disk(DiskUse use, const std::string& path, bool synced);
/// A disk that has not answered by then does not answer.
inline constexpr Duration disk_answer_limit = std::chrono::seconds{10};

/// Where Python's tempfile would make its files.
[[nodiscard]] std::string temporary_folder();

/// What there is to look at.
struct PreflightPlaces {
  int workers = 1;
  std::string log_folder = {};  ///< empty: none that the user named
  std::string temporary_folder = {};
  std::vector<int> gpus = {};  ///< as in PreflightConfig
  Gpus gpus_found = {};
};
/// All of it. A disk that does not answer within the limit is told of; a thread of ours waits for it on.
[[nodiscard]] PreflightFacts read_preflight_facts(const PreflightPlaces& places, PreflightLevel level,
                                                  Duration disk_limit = disk_answer_limit);

/// Versions of what workers compute with, that should be the same on all nodes, from files alone: torch and NCCL as
/// installed beside this Python, and the NVIDIA driver. `python`: its path; empty: no Python. Few.
[[nodiscard]] std::vector<Fact> version_facts(const std::string& python, const std::string& driver);
/// The first Python on PATH, where no program says which one is meant; empty: there is none.
[[nodiscard]] std::string python_on_path();

}  // namespace torchup
