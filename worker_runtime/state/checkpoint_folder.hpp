#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <torchup/safetensors.hpp>
#include <vector>

namespace torchup {

/// Content of a checkpoint. `facts` holds everything that is not a tensor; the step is among them, as facts["step"].
struct CheckpointContent {
  nlohmann::json facts;
  NamedTensors model;
  NamedTensors training;
};

/// A checkpoint that looks whole.
struct FoundCheckpoint {
  std::int64_t step = 0;
  /// Equal where two ranks see the same files, as on a disk that they share: the manifest's checksum, and inode and
  /// time of the tensors' files. A copy on another disk is another one.
  std::string identity;
};

struct FoundCheckpoints {
  std::vector<FoundCheckpoint> whole;  ///< newest first
  std::set<std::int64_t> damaged;      ///< steps that nothing can be resumed from: a file is missing, or cut short
};

/// A checkpoint as read: tensors by name.
struct LoadedCheckpoint {
  nlohmann::json facts;
  std::map<std::string, torch::Tensor> model;
  std::map<std::string, torch::Tensor> training;
};

/// The checkpoints of one folder on disk.
class CheckpointFolder {
 public:
  /// Makes the folder. Throws Error when it cannot.
  explicit CheckpointFolder(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }

  /// Checkpoints that look whole: the manifest is there and right, and the files have its sizes. Cheap: no tensor is
  /// read. Why others are passed over is said once.
  FoundCheckpoints found() const;

  /// Reads a checkpoint and compares every checksum. Throws Error when anything is wrong.
  LoadedCheckpoint load(std::int64_t step) const;

  /// Writes a checkpoint whole or not at all. What crashed writers left goes first, for the new one may need its room;
  /// what is too old to be one of the `keep_last` newest (0: nothing), and the `damaged` steps and those that found()
  /// finds so, only afterwards.
  ///
  /// Throws Error also when the folder holds a newer checkpoint that is not damaged: it is of another run, and would
  /// win.
  void save(const CheckpointContent& content, int keep_last, const std::set<std::int64_t>& damaged) const;

 private:
  std::filesystem::path path_of(std::int64_t step) const;
  void remove_left_over() const;

  std::filesystem::path path_;
  mutable std::set<std::string> told_;  ///< why checkpoints are passed over
};

}  // namespace torchup
