#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <torchup/process_group.hpp>

namespace torchup {

struct ZeroFirstOptions {
  /// The rank of every node that comes first is its first one (each node has its disk); false: rank 0 of the group is.
  bool per_node = true;
  std::chrono::milliseconds timeout =
      std::chrono::hours{2};  ///< how long the others wait; not the group's, which is shorter
};

/// While it lives, one rank of each node does what the others will find done: download, unpack, compile.
///
///   {
///     const torchup::ZeroFirst guard{group};
///     if (!std::filesystem::exists(data)) download(data);   // the first ones; the others come here when they are done
///   }
///
/// The others wait in the constructor, at the store, not in a collective whose watchdog would end them. When the first
/// one fails (an exception leaves its scope, or ends the process under worker_main) their constructors throw Error with
/// its message at once. Every rank of the group makes the same guards in the same order.
class ZeroFirst {
 public:
  explicit ZeroFirst(const ProcessGroup& group, const ZeroFirstOptions& options = {});
  ~ZeroFirst();
  ZeroFirst(const ZeroFirst&) = delete;
  ZeroFirst& operator=(const ZeroFirst&) = delete;

  bool first() const;  ///< this rank is one of those that do the work

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace torchup
