#pragma once

#include <mutex>
#include <optional>
#include <set>

namespace torchup {

/// The connections of one gloo group, by which it can be ended from outside.
///
/// gloo's own abort does nothing: a collective waits for a silent peer until its timeout, and so does the group's
/// destructor. A connection that is shut down ends both within milliseconds. gloo names none, but the kernel does: one
/// thread of each group's device waits for all of them through one epoll instance.
class GlooSockets {
 public:
  /// To be made before the group; sees which threads and epoll instances are there without it.
  GlooSockets();
  /// The group is there: finds its epoll instance. Not found: shut_down() does nothing from here on.
  void made();

  [[nodiscard]] bool found() const;
  /// Ends the connections to all peers. From any thread, as long as the group lives, and while it is being made: then
  /// what there is by now, as far as it can be told. Returns how many there were.
  int shut_down() const;

 private:
  /// The epoll instance that has come with the group, if this is an instant in which it can be told.
  [[nodiscard]] std::optional<int> look() const;

  std::set<int> threads_before_;
  std::set<int> epolls_before_;
  mutable std::mutex mutex_;
  bool made_ = false;  ///< guarded by mutex_, as the next one
  std::optional<int> epoll_;
};

}  // namespace torchup
