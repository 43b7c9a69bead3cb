#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/diagnosis/preflight.hpp"

/// What preflight looks at on this machine: one function a source, each gives nothing where nothing is known. Those
/// about disks may wait for one: they are for a thread of their own.
namespace torchup {

/// Free in /dev/shm.
[[nodiscard]] std::optional<std::int64_t> shm_free_bytes();
/// NVIDIA's driver has a device here: in a container, one that was given a GPU.
[[nodiscard]] bool has_gpu_device();
/// Of open files, as it is; nothing: without a limit.
[[nodiscard]] std::optional<std::int64_t> nofile_limit();
[[nodiscard]] std::optional<std::int64_t> memlock_limit();
[[nodiscard]] bool has_infiniband();
/// Processes and threads that may still be started, by the tightest cgroup above us and the user's limit (of which
/// those that run already are not counted: it takes too long).
[[nodiscard]] std::optional<std::int64_t> pids_left();

/// What a folder is on: one that is not made yet is looked at where it will be; of several the first that takes files,
/// else the first. `synced`: 4 KiB are also brought to the disk, fsync_tries times.
[[nodiscard]] DiskFacts look_at_disk(DiskUse use, const std::vector<std::string>& places, bool synced);
/// A disk that has not answered by then does not answer.
inline constexpr Duration disk_answer_limit = std::chrono::seconds{10};

/// Disks that threads of ours still wait for. Such a one is not asked again: each asking would leave a thread behind.
class AskedDisks {
 public:
  /// False: somebody waits for it.
  [[nodiscard]] bool begin(DiskUse use);
  void end(DiskUse use);

 private:
  std::mutex mutex_;
  std::array<bool, disk_uses> waited_for_{};
};

/// What there is to look at.
struct PreflightPlaces {
  int workers = 1;
  bool in_pod = false;
  std::string log_folder = {};                      ///< empty: none that the user named
  std::vector<std::string> temporary_folders = {};  ///< as temporary_places
  std::vector<int> gpus = {};                       ///< as in PreflightConfig
  Gpus gpus_found = {};
  std::shared_ptr<AskedDisks> asked = std::make_shared<AskedDisks>();
};
/// All of it. A disk that does not answer within the limit is told of; a thread of ours waits for it on.
[[nodiscard]] PreflightFacts read_preflight_facts(const PreflightPlaces& places, PreflightLevel level,
                                                  Duration disks_limit = disk_answer_limit);

/// Versions of what workers compute with, that should be the same on all nodes, from files alone: torch and NCCL as
/// installed beside this Python, and the NVIDIA driver. `python`: its path; empty: no Python. `driver`: as the driver
/// told it; empty: as its module in the kernel does. One fact a name; where several versions lie there all are named.
///
/// It reads folders of packages, which may lie on a file server: for a thread.
[[nodiscard]] std::vector<Fact> version_facts(const std::string& python, const std::string& driver);
/// What `read` returns, on a thread of its own, or where that takes longer than `limit` that the versions are not
/// known: another node may know.
[[nodiscard]] std::vector<Fact> facts_within(Duration limit, std::function<std::vector<Fact>()> read);
[[nodiscard]] std::vector<Fact> version_facts_within(Duration limit, const std::string& python,
                                                     const std::string& driver);
inline constexpr Duration versions_limit = std::chrono::seconds{1};
inline constexpr int packages_looked_at_max = 20'000;  ///< names of one folder

}  // namespace torchup
