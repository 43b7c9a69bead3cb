#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "rendezvous/net/io/writer_thread.hpp"

namespace torchup {

/// Writes to our stdout or stderr from a thread of its own, for both may block for hours (a pager, Ctrl-S).
///
/// They are inherited, perhaps shared with our parent: O_NONBLOCK is neither set nor relied on. When the other side is
/// gone (EPIPE, a hung-up terminal) the rest is dropped and counted; the job goes on.
class ConsoleWriter {
 public:
  /// `fd` is duplicated; a closed one takes everything and writes nothing. `failed` is called from the writer's thread
  /// with the system's text and the bytes lost so far, when writing begins to fail.
  ConsoleWriter(int fd, std::function<void(std::string reason, std::uint64_t bytes_lost)> failed);

  void write(std::string bytes);
  [[nodiscard]] std::size_t queued_bytes() const { return thread_.queued_bytes(); }
  /// Calls `notice` once, here or from the writer's thread, when at most `level` bytes are queued.
  void when_at_most(std::size_t level, std::function<void()> notice) { thread_.when_at_most(level, std::move(notice)); }
  [[nodiscard]] std::uint64_t bytes_lost() const;
  [[nodiscard]] bool is_terminal() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< shared with the thread
  WriterThread thread_;           ///< starts with the first line: most jobs write to one of the two only
};

/// True when both descriptors are the same file, pipe or terminal: then order between them matters, and two that write
/// to it at positions of their own would destroy each other's text.
[[nodiscard]] bool same_file(int a, int b);

}  // namespace torchup
