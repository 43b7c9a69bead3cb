#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

struct io_uring_cqe;
struct io_uring_sqe;

namespace torchup {

/// Short messages to many sockets, which the kernel takes with one call (io_uring). Sent one by one they cost their
/// sender 1.3 times as much where it has a thousand connections.
///
/// No message waits for room, so each has been taken or has failed when send() returns: nothing is under way between
/// two calls, and bytes and sockets are the caller's own again. Where a kernel does otherwise, or has no io_uring, or
/// forbids it (the seccomp filters of most containers do), there is no batch and each message is sent by itself.
///
/// Takes up 54 KiB and one descriptor, which is close-on-exec; a child process has its memory no more. Only the thread
/// that made it gets something sent: from another one the kernel takes nothing.
class SendBatch {
 public:
  /// Messages in one batch.
  static constexpr std::size_t size_max = 512;

  /// Tries out on a pair of sockets what the kernel does, which costs 0.1 ms.
  /// Errors: the system's, with the call that failed; ENOTSUP with what the kernel does otherwise.
  [[nodiscard]] static Result<SendBatch> make();

  /// One message more, of at least one byte; `size_max` between two calls of send(). The socket must be a stream. The
  /// bytes stay where they are until send().
  void add(int socket, std::string_view bytes);

  /// Sends them all. For each, in the order of add(): how many of its bytes were taken, or the system's error as a
  /// negative number. -EAGAIN: the socket has no room. -EINTR: it was not tried, as when the kernel has no memory for
  /// the call; nothing of it has been sent and send() may do it one by one. Valid until the next add().
  [[nodiscard]] std::span<const int> send();

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(char* begin) const;
  };
  using Mapping = std::unique_ptr<char, Unmap>;

  explicit SendBatch(UniqueFd ring) : ring_{std::move(ring)} {}
  [[nodiscard]] Result<Mapping> map(std::size_t offset, std::size_t bytes) const;
  Result<> try_out();

  UniqueFd ring_;
  Mapping queues_, message_memory_;
  io_uring_sqe* messages_ = nullptr;
  const io_uring_cqe* told_ = nullptr;  ///< of those that were not taken whole
  unsigned *taken_ = nullptr, *end_ = nullptr, *told_begin_ = nullptr,
           *told_end_ = nullptr;  ///< shared with the kernel
  unsigned told_mask_ = 0;
  unsigned next_ = 0;  ///< message, counted from the beginning and round and round
  std::vector<int> results_;
  bool sent_ = false;  ///< results_ are those of the last batch
};

/// From how many messages at once on a batch is worth its making: TORCHUP_SEND_BATCH_MIN, or else `otherwise`; 0: no
/// batches are wanted. Errors: errc::bad_value, which names the variable, when it is no number.
[[nodiscard]] Result<std::size_t> send_batch_min(std::size_t otherwise);

}  // namespace torchup
