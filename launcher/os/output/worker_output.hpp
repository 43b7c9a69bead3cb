#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/options/output_plan.hpp"
#include "launcher/core/record/launch_event.hpp"
#include "launcher/os/output/console.hpp"
#include "launcher/os/output/disk_thread.hpp"
#include "launcher/os/output/evidence.hpp"
#include "launcher/os/output/log_file.hpp"
#include "launcher/os/output/run_directory.hpp"
#include "launcher/os/output/stream_reader.hpp"
#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

/// The workers' output, from their descriptors to the console and the files.
///
/// One `Output` lives as long as the agent; one `AttemptOutput` per attempt. Both live on the agent's loop and are used
/// from its thread only. The loop reads the workers' pipes, cuts lines and adds prefixes (stream_reader.hpp,
/// console.hpp); it never writes. Files and directories are the disk thread's, our stdout and stderr have a thread
/// each, and so have the files that a user reads while the job runs (events): a reader that stalls is nobody else's
/// trouble. A full queue stops the reading of the stream that filled it, so the worker waits as with any pipe; on a
/// terminal console lines are dropped instead, counted and said.
///
///     Output output{loop, plan, listener};
///     auto attempt = co_await output.begin_attempt(name, first_rank);        // directories and files
///     for each worker: spawner.start(…, (*attempt)->take_child_streams(local_rank), …);
///     … all workers' processes are gone …
///     co_await (*attempt)->drain(1s);
///     … after the last attempt …
///     output.print(report);
///     co_await output.finish(2s, patience);
namespace torchup {

/// What becomes a worker's descriptors 0, 1 and 2. Owned and close-on-exec; the spawner duplicates them in the child
/// and lets them go once the child runs (a pipe ends only when its last writer has closed it).
struct ChildStreams {
  UniqueFd in;   ///< our own stdin
  UniqueFd out;  ///< pipe, or pty where our own stdout is a terminal, or our own stdout with `--no-capture`
  UniqueFd err;  ///< the same as `out` where our own two are one file and nothing keeps the worker's apart
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

class Output;

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

  /// What is remembered of one of its streams, as OutputTail has it.
  [[nodiscard]] OutputTail::Kept kept(LocalRank local_rank, OutputTail::Stream stream) const;

  /// When this worker last wrote anything; the start of the attempt if never.
  [[nodiscard]] TimePoint last_output(LocalRank local_rank) const;

  /// To be called when this worker's process is gone: reads what its pipes hold now, so that `tail` is whole.
  void worker_gone(LocalRank local_rank);

  /// Reads all streams to their end, or until `limit` has passed (a grandchild may hold a pipe open; a full queue
  /// may stand still). Then ends open last lines and hands everything to the writers. No reading after it, but of the
  /// `kept` workers' streams, which go on.
  Task<> drain(Duration limit, std::vector<LocalRank> kept = {});

  /// Takes the streams of a worker that lives on from the attempt before: what it writes from now on comes here.
  void adopt(AttemptOutput& before, LocalRank local_rank);

 private:
  friend class Output;
  struct Worker;
  AttemptOutput(Output& output, std::string name, Rank first_rank);
  [[nodiscard]] Worker& worker(LocalRank local_rank) const;
  [[nodiscard]] StreamTargets targets(std::size_t index, OutputTail::Stream kind, Rank first_rank);
  Result<UniqueFd> open_stream(WorkerStream& stream, const StreamRoute& route, OutputTail::Stream kind);
  [[nodiscard]] std::vector<std::string> folders() const;
  [[nodiscard]] bool is_drained() const;
  void do_without_folders(bool disk_is_dead);

  Output& output_;
  const std::string name_;
  std::string directory_;
  std::shared_ptr<LogFile> duplicates_[2];
  std::vector<std::shared_ptr<LogFile>> files_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::shared_ptr<Timer> drained_;  ///< while `drain` waits
  std::vector<LocalRank> kept_;     ///< whose streams `drain` leaves open
};

/// Called on the loop for what the output has to tell: log_write_failed, console_lost.
using OutputListener = std::function<void(EventBody)>;

/// How long a worker's error file may take to be read: its failure is to be answered meanwhile.
inline constexpr Duration last_words_limit = std::chrono::seconds{2};

class Output {
 public:
  /// `plan` as made by make_output_plan.
  Output(asio::io_context& loop, OutputPlan plan, OutputListener listener);
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output();

  /// Makes the directories and files of one attempt. `name`: see attempt_name; `first_rank`: rank of local rank 0.
  ///
  /// The run directory `<log dir>/<run id>_<8 random characters>` (0700) is made by the first call.
  /// Errors: the system's, with the path, when that fails and the user named a log directory. Without one, and in later
  /// attempts, when a disk is full, read-only or dead or somebody has deleted the directory, the attempt goes on
  /// without files and the listener hears why.
  Task<Result<std::unique_ptr<AttemptOutput>>> begin_attempt(std::string name, Rank first_rank);

  /// Has what launchers that are gone have left in temporary folders cleared away, once: to be called when no start
  /// waits for the disk any more.
  void clear_left_behind();

  /// The run directory; empty before the first attempt or when there are no files.
  [[nodiscard]] const std::string& run_directory() const { return run_.path; }

  /// For files and whatever else may wait for a disk.
  [[nodiscard]] DiskThread& disk() { return disk_; }

  /// What becomes descriptors 1 and 2 of a helper of ours: its lines go to our own stdout and stderr, with `prefix`.
  /// Errors: the system's.
  [[nodiscard]] Result<std::array<UniqueFd, 2>> helper_streams(const std::string& prefix);
  /// No helper says anything any more: what they have said by now is shown.
  void end_helpers();

  /// Text of the launcher itself for stderr, whole, in order with the workers' lines. Never blocks. Parts of it come
  /// from other nodes and from workers: what could steer a terminal is shown as `\x1b`.
  void print(const std::string& text);
  /// The same of text that is printable but for colours of ours.
  void print_coloured(const std::string& text);
  /// Whether they are seen: stderr is a terminal, and somebody wants them there.
  [[nodiscard]] bool shows_colours();

  /// Console::show_status of stderr, where it is a terminal and all that is written there passes here: no worker has
  /// our own descriptors.
  void show_status(pid_t launcher, std::function<std::string(TimePoint)> text);
  void erase_status() { err().erase_status(); }
  void end_status() { err().end_status(); }

  /// Appends whole lines to a file of ours (events), on a thread of its own. Never blocks. An open failure, a full
  /// disk, or a reader so slow that more than appended_bytes_max wait reaches the listener.
  void append(const std::string& path, std::string lines);

  /// What a dead worker has left in its error file; an empty `path` means that it had none.
  Task<LastWords> read_last_words(std::string path, Duration limit = last_words_limit);

  /// Copies our terminal's window size to the workers' ptys: on SIGWINCH.
  void window_changed();

  /// Waits until everything is written, at most `limit`, and tells the listener what is lost so far.
  Task<OutputLoss> settle(Duration limit);

  /// How long a pipe or file that stands still is waited for at the end.
  enum class Patience {
    as_cat,   ///< as long as it takes: somebody reads with a pager
    limited,  ///< as everything else
  };
  /// settle, once, at the end; a console that is no terminal gets its time as `patience` says, or until `hurry`. What
  /// is not written then is lost, too. Removes the temporary log directory if no file is in it.
  Task<OutputLoss> finish(Duration limit, Patience patience);
  void hurry();

 private:
  friend class AttemptOutput;
  Console& err() { return separate_err_ ? *separate_err_ : out_; }
  Console& console_of(OutputTail::Stream kind) { return kind == OutputTail::Stream::out ? out_ : err(); }
  [[nodiscard]] Console::Hooks console_hooks();
  std::vector<Console*> consoles();
  void order_run_directory();
  Task<> await_run_directory();
  Task<Result<>> make_folders_of(AttemptOutput& attempt);
  LogFile::Listener log_listener();
  void tell_log_loss(const std::string& path, std::string reason, std::uint64_t bytes);
  Task<> settle_files(Duration limit);
  [[nodiscard]] std::uint64_t log_bytes_lost() const;

  asio::io_context& loop_;
  OutputPlan plan_;
  const OutputListener listener_;
  LoopPost post_;
  DiskThread disk_;
  DiskThread appender_;
  StreamReader reader_;
  Console out_;
  std::unique_ptr<Console>
      separate_err_;  ///< empty when stdout and stderr are one file: then order between them counts
  std::vector<std::unique_ptr<WorkerStream>> helper_streams_;
  std::optional<Result<RunDirectory>> made_;  ///< the run directory, or why there is none; nothing: not known yet
  RunDirectory run_;                          ///< with what attempts have added to what goes at the end
  std::map<std::string, std::shared_ptr<LogFile>> appended_;
  std::optional<TimePoint> appended_told_;
  std::map<std::string, std::uint64_t> log_losses_;  ///< by path, as the listener knows
  bool begun_ = false;                               ///< there was an attempt
  bool cleared_ = false;
  bool hurried_ = false;
};

/// What may wait for a slow reader of a file that we append to; more is dropped and counted.
inline constexpr std::size_t appended_bytes_max = std::size_t{1} << 20;

}  // namespace torchup
