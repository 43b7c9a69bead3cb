#pragma once

#include <memory>
#include <string>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/text/log_line.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

/// Lines that wait for the disk; further ones are lost and counted.
inline constexpr std::size_t unwritten_event_bytes_max = std::size_t{16} << 20;

/// The events of all jobs, a line each, appended to a file by a thread of its own: a disk that is slow, full or gone
/// holds up nobody. What it does not take is lost; when that begins it is one warning, and when it is over how many.
class EventsFile {
 public:
  /// Makes the file where it is missing. A FIFO without a reader is an error, not a wait. Errors: the system's, with
  /// the path.
  [[nodiscard]] static Result<std::unique_ptr<EventsFile>> open(boost::asio::io_context& loop, std::string path,
                                                                LogSink log);
  EventsFile(const EventsFile&) = delete;
  EventsFile& operator=(const EventsFile&) = delete;
  /// Gives what still waits last_lines_limit.
  ~EventsFile();

  /// `line` with its end. Never waits.
  void write(std::string line);

 private:
  class Impl;
  explicit EventsFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace torchup
