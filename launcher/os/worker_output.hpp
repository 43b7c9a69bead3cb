#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/core/launch_event.hpp"
#include "launcher/core/output_plan.hpp"
#include "launcher/os/evidence.hpp"
#include "rendezvous/net/asio.hpp"
#include "rendezvous/net/unique_fd.hpp"

/// The workers' output, from their descriptors to the console and the files.
///
/// One `Output` lives as long as the agent; one `AttemptOutput` per attempt. Both live on the agent's loop and are
/// used from its thread only. The loop reads the workers' pipes, cuts lines and adds prefixes; it never writes. Files
/// and directories are the log writer's, our stdout and stderr the console writer's: two threads behind bounded queues.
/// A full queue stops the reading of the stream that filled it, so the worker waits as with any pipe; on a terminal
/// console lines are dropped instead, counted and said.
///
///     Output output{loop, plan, listener};
///     auto attempt = co_await output.begin_attempt(name, first_rank);        // directories and files
///     for each worker: spawner.start(…, (*attempt)->take_child_streams(local_rank), …);
///     … all workers' processes are gone …
///     co_await (*attempt)->drain(1s);
///     … after the last attempt …
///     output.print(report);
///     co_await output.finish(2s);
namespace torchup {

/// What becomes a worker's descriptors 0, 1 and 2. Owned and close-on-exec; the spawner duplicates them in the child
/// and lets them go once the child runs (a pipe ends only when its last writer has closed it).
struct ChildStreams {
  UniqueFd in;   ///< our own stdin with one worker, /dev/null with several
  UniqueFd out;  ///< pipe, or pty where our own stdout is a terminal, or our own stdout with `--no-capture`
  UniqueFd err;
};

/// Paths of one worker in one attempt; empty where there is none.
struct WorkerFiles {
  std::string directory;
  std::string stdout_log;
  std::string stderr_log;
  std::string error_file;  ///< for TORCHELASTIC_ERROR_FILE; the worker may create it
};

/// Bytes that did not reach where they should; all zero when nothing went wrong.
struct OutputLoss {
  std::uint64_t console_bytes = 0;
  std::uint64_t log_bytes = 0;
};

class AttemptOutput {
 public:
  AttemptOutput(const AttemptOutput&) = delete;
  AttemptOutput& operator=(const AttemptOutput&) = delete;
  /// Closes our ends of all pipes; what was not read is lost.
  ~AttemptOutput();

  /// The descriptors for this worker; once per worker. Reading begins at once.
  /// Errors: the system's (no descriptors, no pty).
  Result<ChildStreams> take_child_streams(LocalRank local_rank);

  [[nodiscard]] const WorkerFiles& files(LocalRank local_rank) const;

  /// Directory of the attempt; empty when there are no files.
  [[nodiscard]] const std::string& directory() const;

  /// The last 20 lines of both streams of this worker in the order they were read, at most 16 KiB.
  [[nodiscard]] std::vector<std::string> tail(LocalRank local_rank) const;

  /// All lines of this worker that are remembered: at most 16 KiB.
  [[nodiscard]] std::vector<std::string> recent_lines(LocalRank local_rank) const;

  /// When this worker last wrote anything; the start of the attempt if never.
  [[nodiscard]] TimePoint last_output(LocalRank local_rank) const;

  /// To be called when this worker's process is gone: reads what its pipes hold now, so that `tail` is whole.
  void worker_gone(LocalRank local_rank);

  /// Reads all streams to their end, or until `limit` has passed (a grandchild may hold a pipe open; a full queue
  /// may stand still). Then ends open last lines and hands everything to the writers. No reading after it.
  Task<> drain(Duration limit);

 private:
  friend class Output;
  struct State;
  explicit AttemptOutput(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;  ///< shared with handlers under way
};

/// Called on the loop for what the output has to tell: log_write_failed, console_lost.
using OutputListener = std::function<void(EventBody)>;

class Output {
 public:
  /// `plan` as made by make_output_plan. Starts the log writer's thread; a console's starts with its first
  /// line. All signals are blocked in them.
  Output(asio::io_context& loop, OutputPlan plan, OutputListener listener);
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output();

  /// Makes the directories and files of one attempt. `name`: see attempt_name; `first_rank`: rank of local rank 0.
  ///
  /// The run directory `<log dir>/<run id>_<8 random characters>` (0700) is made by the first call.
  /// Errors: the system's, with the path. Only when the user named a log directory: without one the attempt goes on
  /// without files and the listener hears why.
  Task<Result<std::unique_ptr<AttemptOutput>>> begin_attempt(std::string name, Rank first_rank);

  /// The run directory; empty before the first attempt or when there are no files.
  [[nodiscard]] const std::string& run_directory() const;

  /// Text of the launcher itself for stderr, whole, in order with the workers' lines. Never blocks. Parts of it come
  /// from other nodes and from workers: what could steer a terminal is shown as `\x1b`.
  void print(std::string text);

  /// Appends whole lines to a file of ours (events), through the log writer. Never blocks. An open failure or a full
  /// disk reaches the listener.
  void append(const std::string& path, std::string lines);

  /// Writes `content` beside `path`, syncs it and renames it over `path`: readers see the old or the new file.
  /// Errors: the system's; timed_out after 10 s.
  Task<Result<>> replace_file(std::string path, std::string content);

  /// Runs `work` on the log writer's thread, after what was given to it before: for what may wait for a disk or takes
  /// long. `work` shares nothing with the loop but what it owns.
  void aside(std::function<void()> work);
  /// The same, and waits for its end without stopping the loop, 10 s at most. False: it may still be running.
  Task<bool> finished_aside(std::function<void()> work);

  /// What a dead worker has left in its error file; an empty `path` means that it had none. At most 10 s.
  Task<LastWords> read_last_words(std::string path);

  /// Copies our terminal's window size to the workers' ptys: on SIGWINCH.
  void window_changed();

  /// Waits until everything is written, at most `limit`, and tells the listener what is lost in all.
  Task<OutputLoss> settle(Duration limit);

  /// settle, once, at the end; removes the temporary log directory if no file is in it.
  Task<OutputLoss> finish(Duration limit);

 private:
  friend class AttemptOutput;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace torchup
