#pragma once

#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torchup/process_group.hpp>

namespace torchup {

/// How one rank tells the others that it is through with something that may take long, and how it went.
///
/// Over the store, on a connection of its own, and not by a collective: NCCL's watchdog ends a job whose ranks wait in
/// one for longer than the group's timeout, and a disk may take longer. Making one is collective.
class OutcomeBoard {
 public:
  OutcomeBoard(const ProcessGroup& group, const std::string& purpose);

  /// Says how number `number` went: `failure` is empty when it went well. From any thread, one at a time. Does not
  /// throw: where there is no store any more, there is nobody to be told.
  void publish(std::int64_t number, const std::string& failure) noexcept;
  /// The failure that was published, empty when it went well. Throws Error when the store is gone.
  std::string wait_for(std::int64_t number);

 private:
  std::string key(std::int64_t number) const;

  std::string prefix_;
  c10::intrusive_ptr<c10d::Store> store_;  ///< null in a group of one, which has nobody to tell
};

}  // namespace torchup
