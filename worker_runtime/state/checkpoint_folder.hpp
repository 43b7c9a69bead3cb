#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <torchup/error.hpp>
#include <torchup/safetensors.hpp>
#include <vector>

#include "worker_runtime/state/shared_folder.hpp"

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

/// What is in a folder.
struct FoundCheckpoints {
  std::vector<FoundCheckpoint> whole;   ///< newest first
  std::set<std::int64_t> damaged = {};  ///< nothing can be resumed from them: a file is missing or cut short
  std::set<std::int64_t> unread = {};   ///< what they hold is not known: the disk failed, or another release wrote them
};

/// No program can resume from it. Not what is of another release, and not what is only out of reach for now.
struct Damaged : Error {
  using Error::Error;
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
  /// Makes the folder. Throws Error when it cannot. `patience`: how long save() waits for another writer that is alive,
  /// for it may be one of this job's that has 30 s to end.
  explicit CheckpointFolder(std::filesystem::path path, std::chrono::milliseconds patience = std::chrono::seconds{60});

  const std::filesystem::path& path() const { return path_; }

  /// Checkpoints that look whole: the manifest is there and right, and the files have its sizes. Cheap: no tensor is
  /// read. Why others are passed over is said once. With it begins a resumption, for all objects of this process that
  /// have the folder: what the one before has passed over is forgotten.
  FoundCheckpoints found() const;

  /// Reads a checkpoint and compares every checksum. Throws Damaged where its content is wrong, and another Error where
  /// it cannot be read.
  LoadedCheckpoint load(std::int64_t step) const;

  /// The resumption passes over one that was found whole: it is damaged, or could not be read.
  void pass_over_damaged(const FoundCheckpoint& checkpoint) const;
  void pass_over_unread(const FoundCheckpoint& checkpoint) const;

  /// Writes a checkpoint whole or not at all. What crashed writers left goes first, for the new one may need its room;
  /// what is too old to be one of the `keep_last` newest (0: nothing), and what is damaged, only afterwards.
  ///
  /// From the first save on this process is the folder's only writer, until stop_writing() or the end of all its
  /// objects that have the folder, which write by turns: throws Error when there is another one (see WriterLock). That
  /// the file system has no locks is said once.
  ///
  /// Throws Error also when the step is negative, and when the folder holds a newer checkpoint that was not passed
  /// over: it is of another run, and would win. A newer one that was not read stays: it may be read another time, and
  /// is further than this one.
  void save(const CheckpointContent& content, int keep_last) const;

  /// A place in the line of this process's saves into the folder.
  std::unique_ptr<SaveTurn> join_line() const;
  /// Returns when those that are in line now have been written, whichever object they are of.
  void wait_for_line() const;

  /// Other processes may write from now on: another rank of this job does. Waits as wait_for_line(); what objects of
  /// this process save later takes the right anew.
  void stop_writing() const;

 private:
  std::filesystem::path path_of(std::int64_t step) const;
  SharedFolder& shared() const;
  std::unique_lock<std::mutex> begin_writing() const;
  std::vector<std::filesystem::path> set_aside() const;
  void bring_back() const;
  FoundCheckpoints look() const;
  void remove_left_over() const;

  std::filesystem::path path_;
  std::chrono::milliseconds patience_;
  mutable std::shared_ptr<SharedFolder> shared_;
  mutable std::set<std::string> told_;  ///< why checkpoints are passed over, and nothing is guarded
};

}  // namespace torchup
