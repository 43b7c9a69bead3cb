#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "worker_runtime/group/gloo_sockets.hpp"

namespace torchup {

/// What connects the ranks of a group: a backend, and the way to end it from another thread.
///
/// All of them in this process are known to interrupt_connections(), from before they begin to connect until after they
/// have gone: a peer may be silent at any time.
class GroupConnection {
 public:
  /// `connect` makes the backend, and waits for the peers. Throws what it throws.
  enum class Kind { gloo, nccl };
  GroupConnection(Kind kind, const std::function<c10::intrusive_ptr<c10d::Backend>()>& connect);
  /// Waits for peers, unless interrupt() was called and ends_at_once().
  ~GroupConnection();
  GroupConnection(const GroupConnection&) = delete;
  GroupConnection& operator=(const GroupConnection&) = delete;

  [[nodiscard]] c10d::Backend& backend() const { return *backend_; }
  /// After interrupt() the destructor waits for nobody.
  [[nodiscard]] bool ends_at_once() const;
  /// What waits for peers throws within milliseconds, and what comes later too. From any thread, as often as one likes.
  void interrupt();

 private:
  std::optional<GlooSockets> gloo_;  ///< where the backend is gloo
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Backend> backend_;  ///< written under mutex_; read by others than its owner under it too
  bool aborted_ = false;                       ///< guarded by mutex_
};

/// Leaves a connection that may wait for peers in its destructor as it is, until end_abandoned_connections(), or else
/// the end of the process. Peers notice nothing.
void abandon(std::unique_ptr<GroupConnection> connection);
/// Interrupts them, and ends those that end at once.
void end_abandoned_connections();

/// Interrupts all of this process. From any thread.
void interrupt_connections();

}  // namespace torchup
