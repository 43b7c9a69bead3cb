#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "worker_runtime/group/gloo_sockets.hpp"

namespace torchup {

/// Which group is connected.
struct GroupMembers {
  std::string name;
  std::vector<int> global_ranks;
};

struct ConnectedGroup;

/// What connects the ranks of a group: a backend, and the way to end it from another thread.
///
/// All of them in this process are known to interrupt_connections(), from before they begin to connect until after they
/// have gone: a peer may be silent at any time.
class GroupConnection {
 public:
  /// `connect` makes the backend, and waits for the peers. Throws what it throws.
  enum class Kind { gloo, nccl };
  GroupConnection(Kind kind, GroupMembers members, const std::function<c10::intrusive_ptr<c10d::Backend>()>& connect);
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
  friend void abandon(std::unique_ptr<GroupConnection> connection);
  friend std::vector<ConnectedGroup> connected_groups();
  /// LibTorch's count of what was begun; nothing before it is connected, and when it is left.
  std::optional<std::int64_t> sequence();

  const std::shared_ptr<const GroupMembers> members_;
  const std::int64_t since_ns_;
  std::optional<GlooSockets> gloo_;  ///< where the backend is gloo
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Backend> backend_;  ///< written under mutex_; read by others than its owner under it too
  bool aborted_ = false;                       ///< guarded by mutex_, as the next one
  bool left_ = false;                          ///< abandoned
};

/// Leaves a connection that may wait for peers in its destructor as it is, until end_abandoned_connections(), or else
/// the end of the process. Peers notice nothing.
void abandon(std::unique_ptr<GroupConnection> connection);
/// Interrupts them, and ends those that end at once.
void end_abandoned_connections();

/// A group of this process, and how far it is.
struct ConnectedGroup {
  GroupConnection::Kind kind;
  std::shared_ptr<const GroupMembers> members;
  std::int64_t since_ns = 0;   ///< when its ranks began to connect, by the clock of the day
  std::int64_t sequence = -1;  ///< LibTorch's count of what was begun in it; -1: its backend does not count
};
/// Those that are connected and not left, the oldest first. From any thread.
[[nodiscard]] std::vector<ConnectedGroup> connected_groups();

/// Interrupts all of this process. From any thread.
void interrupt_connections();

}  // namespace torchup
