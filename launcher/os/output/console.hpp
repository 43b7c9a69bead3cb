#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/agent/console_turns.hpp"
#include "launcher/core/record/launch_event.hpp"
#include "launcher/core/text/status_line.hpp"
#include "launcher/os/io/loop_post.hpp"
#include "launcher/os/io/loop_wait.hpp"
#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/io/console_writer.hpp"

namespace torchup {

/// A queue that holds more stops the streams that feed it; half of it lets them go on. Small, for a line waits behind
/// what is queued before it.
inline constexpr std::size_t queue_bytes_max = std::size_t{256} << 10;
/// A terminal that stands still (Ctrl-S) must not stop the job: so much is kept for it, then lines are dropped.
inline constexpr std::size_t terminal_bytes_max = std::size_t{8} << 20;

/// One of our own streams, and what is about to be written to it. On the loop; never blocks.
///
/// Lines of several sources take turns (core/console_turns.hpp). What was fed goes to the writer with `flush`, once a
/// turn of the loop. A pipe or file that does not keep up makes it `full`: its sources are not to be read; a terminal
/// never is, it loses whole batches, which are counted and told.
class Console {
 public:
  struct Hooks {
    std::function<void(EventBody)> tell;  ///< console_lost
    std::function<void()> has_room;       ///< it is not full any more, or a source holds less back
    std::function<bool()> read_more;      ///< reads what the sources have now; true when that was anything
  };
  Console(asio::io_context& loop, std::string name, int fd, Hooks hooks);
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  ~Console() { post_.cut(); }

  [[nodiscard]] const std::string& name() const { return name_; }  ///< `stdout`, `stderr`
  [[nodiscard]] int descriptor() const { return fd_; }
  [[nodiscard]] bool is_terminal() const { return writer_.is_terminal(); }
  [[nodiscard]] bool is_full() const { return full_; }

  ConsoleTurns& turns() { return turns_; }
  std::string& batch() { return batch_; }  ///< where `turns` write

  /// Gives the batch to the writer, and sees to half lines.
  void flush();

  /// From now on `text`, cut to the terminal's width, stands at its bottom while nobody writes (core/text/status_line).
  /// It is asked for each second; empty: there is no such line. Only where this is a terminal, and while it is ours:
  /// `launcher` is the process that the terminal knows.
  void show_status(pid_t launcher, std::function<std::string(TimePoint)> text);
  /// What is written here may be seen on `screen` too, by whoever reads it (a pipe to tee): its line is gone before.
  void seen_on(Console& screen) { screen_ = &screen; }
  /// Takes the line away, until the next time.
  void erase_status();
  /// And for good: no wait for it keeps the loop from its end.
  void end_status();

  /// Waits until everything is written, at most until `limit` (nothing: as long as it takes) or `hurry`. True: it is.
  Task<bool> written(std::optional<Duration> limit);
  /// Ends the waiting now.
  void hurry();

  /// Bytes dropped or refused so far.
  [[nodiscard]] std::uint64_t bytes_lost() const { return dropped_ + writer_.bytes_lost(); }
  [[nodiscard]] std::size_t queued_bytes() const { return writer_.queued_bytes(); }
  /// Tells what is lost and was not told yet. With `given_up` that is also what nobody has read.
  std::uint64_t tell_losses(bool given_up);

 private:
  struct Status {
    StatusLine line;
    pid_t launcher;
    std::function<std::string(TimePoint)> text;
    bool expected = false;  ///< the timer runs
  };
  void expect_turn();
  void expect_status(TimePoint not_before);
  void draw_status(TimePoint now);
  [[nodiscard]] bool made_way(std::string_view bytes, std::function<void()> then);

  asio::io_context& loop_;
  LoopPost post_;
  const std::string name_;
  const int fd_;
  const Hooks hooks_;
  ConsoleWriter writer_;
  ConsoleTurns turns_;
  std::string batch_;  ///< of this turn of the loop
  Timer turn_timer_;
  bool turn_expected_ = false;
  std::optional<Status> status_;
  Timer status_timer_;
  bool erasing_ = false;       ///< the line is on its way out, and somebody waits for that
  Console* screen_ = nullptr;  ///< seen_on
  bool full_ = false;
  std::shared_ptr<LoopWait<bool>> waiting_;  ///< of `written`
  std::uint64_t dropped_ = 0;                ///< bytes of a terminal that did not keep up
  std::uint64_t dropped_now_ = 0;            ///< not yet said
  std::uint64_t told_ = 0;                   ///< bytes lost, as the listener knows
  std::string reason_ = "it was too slow";   ///< for the loss
};

}  // namespace torchup
