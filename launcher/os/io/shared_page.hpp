#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/worker_page.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// What is left in the memory of a worker that is gone.
struct WorkerRemains {
  std::optional<WorkerProgress> progress = {};
  std::optional<HookPage> hook = {};
  std::string sheet = {};  ///< as read_sheet; of one that a signal has ended
};

/// The agent's side of the memory that it shares with a worker (rendezvous/base/worker_page.hpp). It never maps it: the
/// worker writes what it likes, and a copy cannot change under our eyes.
class SharedPage {
 public:
  /// Errors: the system's.
  [[nodiscard]] static Result<SharedPage> make();

  [[nodiscard]] int fd() const { return fd_.get(); }
  /// The page as the worker finds it at descriptor `at`; its pid is not known yet.
  [[nodiscard]] WorkerPageAddress address(int at) const { return {at, device_, inode_, 0}; }

  [[nodiscard]] std::optional<WorkerProgress> read(pid_t pid) const;
  /// What the hook in a Python worker says, or the runtime of a C++ worker with groups.
  [[nodiscard]] std::optional<HookPage> hook() const;
  /// Whether the worker with this pid has opened the page, and so will hear what is asked over it.
  [[nodiscard]] bool is_open(pid_t pid) const;
  /// Asks the worker's job to stop after a step that all ranks agree on.
  void request_drain();

 private:
  UniqueFd fd_;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
};

// For whoever has the memory's descriptor, or a duplicate of it, also in another thread.

/// As SharedPage::hook.
[[nodiscard]] std::optional<HookPage> read_hook(int memory);
/// As SharedPage::read.
[[nodiscard]] std::optional<WorkerProgress> read_progress(int memory, pid_t pid);
/// Wipes the sheet, which gives its memory back, and has the next stacks written to its beginning.
void wipe_sheet(int memory);
/// Where the next stacks would be written, in bytes from the sheet's beginning: whether it has grown since it was
/// wiped. What the worker likes, for the file's offset is its own too.
[[nodiscard]] std::int64_t sheet_end(int memory);
/// What is written on the sheet: worker_sheet_bytes at most, without what follows the last byte that is not zero.
[[nodiscard]] std::string read_sheet(int memory);
/// The first `length` bytes of the answer area; worker_answer_bytes at most.
[[nodiscard]] std::string read_answer(int memory, std::size_t length);

}  // namespace torchup
