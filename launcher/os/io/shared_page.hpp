#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/worker_page.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// The agent's side of the page that it shares with a worker (rendezvous/base/worker_page.hpp). It never maps the page:
/// the worker writes what it likes, and a copy cannot change under our eyes.
class SharedPage {
 public:
  /// Errors: the system's.
  [[nodiscard]] static Result<SharedPage> make();

  [[nodiscard]] int fd() const { return fd_.get(); }
  /// The page as the worker finds it at descriptor `at`; its pid is not known yet.
  [[nodiscard]] WorkerPageAddress address(int at) const { return {at, device_, inode_, 0}; }

  [[nodiscard]] std::optional<WorkerProgress> read(pid_t pid) const;
  /// Whether the worker with this pid has opened the page, and so will hear what is asked over it.
  [[nodiscard]] bool is_open(pid_t pid) const;
  /// Asks the worker's job to stop after a step that all ranks agree on.
  void request_drain();

 private:
  UniqueFd fd_;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
};

}  // namespace torchup
