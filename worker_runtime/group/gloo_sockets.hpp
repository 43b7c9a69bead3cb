#pragma once

#include <mutex>
#include <set>

namespace torchup {

/// The connections of one gloo group, by which it can be ended from outside.
///
/// gloo's own abort does nothing: a collective waits for a silent peer until its timeout, and so does the group's
/// destructor. A connection that is shut down ends both within milliseconds. gloo names none, but the kernel does: a
/// thread of each of the group's devices (of several interfaces) waits for all of them through one epoll instance.
class GlooSockets {
 public:
  /// To be made before the group; sees which threads and epoll instances are there without it.
  GlooSockets();
  /// The group is there: finds its epoll instances. Not found: shut_down() does nothing from here on.
  void made();

  [[nodiscard]] bool found() const;
  /// Ends the connections to all peers. From any thread, as long as the group lives, and while it is being made: then
  /// what there is by now, as far as it can be told. Returns how many there were.
  int shut_down() const;

 private:
  enum class Looking { part, all, last };
  /// The epoll instances that have come with the group: those of them that can be told in this instant; or all of them,
  /// and nothing if they cannot be told; `last`: nor can they be later, by their threads.
  [[nodiscard]] std::set<int> look(Looking looking) const;

  std::set<int> threads_before_;
  std::set<int> epolls_before_;
  mutable std::mutex mutex_;
  bool made_ = false;  ///< guarded by mutex_, as the next one
  std::set<int> epolls_;
};

}  // namespace torchup
