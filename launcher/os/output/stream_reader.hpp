#pragma once

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/text/line_splitter.hpp"
#include "launcher/os/output/console.hpp"
#include "launcher/os/output/disk_thread.hpp"
#include "launcher/os/output/log_file.hpp"
#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

class StreamReader;

/// What is remembered of one worker's output.
struct WorkerMemory {
  OutputTail tail{};
  TimePoint last_output{};
};

/// Where the bytes of one stream of one worker go.
struct StreamTargets {
  OutputTail::Stream kind = OutputTail::Stream::out;
  std::shared_ptr<WorkerMemory> memory;
  Console* console = nullptr;  ///< empty when the stream is not shown
  LineRules rules{};           ///< for the console
  std::shared_ptr<LogFile> log{};
  std::shared_ptr<LogFile> duplicates{};  ///< of lines that the rules' filters choose
};

/// One stream of one worker, read from `open` to its end or `close`, whatever attempt the worker belongs to: nothing of
/// an attempt is in it but the targets.
class WorkerStream {
 public:
  /// `ended` is called once, when no more will be read.
  WorkerStream(StreamReader& reader, StreamTargets targets, std::function<void()> ended);
  WorkerStream(const WorkerStream&) = delete;
  WorkerStream& operator=(const WorkerStream&) = delete;
  /// What was not read is lost.
  ~WorkerStream();

  /// Our end of the worker's pipe or pty, non-blocking. Reading begins at once.
  void open(UniqueFd fd, bool is_pty);
  [[nodiscard]] bool is_open() const { return static_cast<bool>(fd_); }
  /// Reads what is there now: after the worker's end, so that its memory is whole.
  void read_rest();
  /// Ends the stream: its open last line is shown.
  void close();
  /// The same, but what is written from now on is read by `successor`, which is not open.
  void hand_over(WorkerStream& successor);
  /// Bytes that are there and were not read.
  [[nodiscard]] int unread() const;
  /// Copies the window size of our own terminal where the worker has one.
  void window_changed() const;

 private:
  friend class StreamReader;
  /// Returns how many bytes were read: 0 when there are none now, or the stream has ended.
  std::size_t read(TimePoint now);
  UniqueFd stop();
  void flush_files();

  StreamReader& reader_;
  const StreamTargets targets_;
  const std::function<void()> ended_;
  ConsoleTurns::Source source_ = 0;
  UniqueFd fd_;
  bool is_pty_ = false;
  bool watched_ = false;
  bool touched_ = false;  ///< since the last flush
  std::string log_batch_;
  std::string duplicates_batch_;
};

/// Reads all workers' streams on the loop: one wait of the loop for all of them. A full console or disk queue stops the
/// reading of the streams that feed it, so the workers wait as with any pipe.
class StreamReader {
 public:
  StreamReader(asio::io_context& loop, DiskThread& disk) : poll_{loop}, later_{loop}, disk_{disk} {}
  StreamReader(const StreamReader&) = delete;
  StreamReader& operator=(const StreamReader&) = delete;

  /// Consoles are flushed after each turn; once, before any stream.
  void flushes(std::vector<Console*> consoles) { consoles_ = std::move(consoles); }

  /// Once, before any stream. Errors: the system's.
  Result<> start();

  /// Reads some streams that have something. True: there were any.
  bool turn();
  /// Gives everything read to the writers.
  void flush();
  /// Copies our terminal's window size to all workers' ptys.
  void window_changed() const;
  /// Something may not be full any more.
  void watch_all();

 private:
  friend class WorkerStream;
  static constexpr std::size_t read_bytes_max = std::size_t{64} << 10;

  void wait();
  void add(WorkerStream& stream);
  void remove(WorkerStream& stream);
  void touch(WorkerStream& stream);
  void watch(WorkerStream& stream);
  void watch_later();

  asio::posix::stream_descriptor poll_;  ///< an epoll of all streams
  asio::steady_timer later_;
  DiskThread& disk_;
  std::vector<Console*> consoles_;
  std::vector<WorkerStream*> streams_;  ///< that are open
  std::vector<WorkerStream*> touched_;
  const WorkerStream* last_read_ = nullptr;  ///< only to be compared
  bool held_back_ = false;                   ///< a stream is not read because it holds enough back
  bool waiting_ = false;
  bool disk_full_ = false;
  std::array<char, read_bytes_max> buffer_{};
};

}  // namespace torchup
