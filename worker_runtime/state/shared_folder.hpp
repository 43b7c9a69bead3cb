#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "worker_runtime/state/writer_lock.hpp"

namespace torchup {

/// Steps that the last resumption from a folder passed over, though they looked whole or might be.
struct PassedOver {
  /// Nothing can be resumed from them, by identity (see FoundCheckpoint): what else has been saved as that step since
  /// is not damaged.
  std::map<std::int64_t, std::string> damaged = {};
  std::set<std::int64_t> unread = {};  ///< what they hold is not known: the disk failed, or another release wrote them
};

/// What all objects of this process that save into one folder have in common, whatever they call it.
class SharedFolder {
 public:
  /// That of a folder, which lives as long as anybody has it. A process that was forked has its own. Null: the folder
  /// cannot be looked at.
  static std::shared_ptr<SharedFolder> of(const std::filesystem::path& folder);

  /// Returns when all that are in line now have gone.
  void wait_for_line();

  std::mutex turn;                   ///< held by who writes just now. It guards:
  std::unique_ptr<WriterLock> lock;  ///< null: this process does not write here
  PassedOver passed_over;

 private:
  friend class SaveTurn;
  struct Key {
    pid_t process;
    dev_t device;
    ino_t inode;
    friend bool operator==(const Key&, const Key&) = default;
  };
  explicit SharedFolder(const Key& key) : key_{key} {}

  const Key key_;
  std::mutex line_;
  std::shared_future<void> last_;  ///< in line: is ready when that one has gone
};

/// A place in the line of this process's saves into a folder: they are written in the order in which the program asked
/// for them, whichever object and thread does it. An older step that came after a newer one would look like another
/// run's.
class SaveTurn {
 public:
  /// Joins the line.
  explicit SaveTurn(std::shared_ptr<SharedFolder> folder);
  ~SaveTurn();  ///< the next one may write
  SaveTurn(const SaveTurn&) = delete;
  SaveTurn& operator=(const SaveTurn&) = delete;

  /// Returns when all that joined before have gone.
  void wait() const;
  [[nodiscard]] bool is_next() const;

 private:
  std::shared_ptr<SharedFolder> folder_;
  std::promise<void> gone_;
  std::shared_future<void> before_;
};

}  // namespace torchup
