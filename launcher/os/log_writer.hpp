#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/base/result.hpp"

namespace torchup {

/// One file that the log writer writes; opened, written and closed by its thread.
class LogFile;

/// Writes files from a thread of its own: a disk may be full, slow or gone, and that is not the job's fault.
///
/// Failed bytes are dropped and counted; the next ones are tried again.
class LogWriter {
 public:
  struct Failure {
    std::string path;
    std::string reason;
    std::uint64_t bytes_lost = 0;  ///< of this file, so far
  };
  /// `failed` is called from the writer's thread: at a file's first failure, at most once a minute after, and by
  /// report_losses.
  explicit LogWriter(std::function<void(Failure)> failed);
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;
  /// Ends the thread if it is idle, else leaves it behind (a dead file server).
  ~LogWriter();

  using File = std::shared_ptr<LogFile>;
  /// A file to be created (truncated) by `open`; with `bytes_max` > 0 it is renamed to `<path>.1` before it would grow
  /// longer, at a line end if there is one, and begun anew.
  static File log_file(std::string path, std::uint64_t bytes_max);
  /// A file to be appended to, opened by its first write; may be a FIFO with a reader.
  static File appended_file(std::string path);
  /// On the writer's thread: creates the file. Errors: the system's, with the path.
  static Result<> open(LogFile& file);

  void write(const File& file, std::string bytes);
  /// Runs `work` on the writer's thread, after what was put before.
  void call(std::function<void()> work);
  /// Tells the failures of `file` that were not told yet, after what was put before.
  void report_losses(const File& file);

  [[nodiscard]] std::size_t queued_bytes() const;
  void when_at_most(std::size_t level, std::function<void()> notice);

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< shared with the thread
  std::thread thread_;
};

/// Writes `content` to a new file beside `path`, syncs it and renames it over `path`. A path that exists and is no
/// regular file (a FIFO, /dev/stdout) is written directly.
Result<> replace_file_now(const std::string& path, const std::string& content);

}  // namespace torchup
