#include "launcher/os/worker_output.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "launcher/core/line_splitter.hpp"
#include "launcher/core/text.hpp"
#include "launcher/os/console_writer.hpp"
#include "launcher/os/log_writer.hpp"
#include "launcher/os/loop_post.hpp"
#include "launcher/os/pty.hpp"
#include "launcher/os/run_directory.hpp"

namespace torchup {
namespace {

/// A console or log queue that holds more stops the streams that feed it; half of it lets them go on. Small, for a line
/// waits behind what is queued before it.
constexpr std::size_t queue_bytes_max = std::size_t{256} << 10;
/// Of all workers' pipes for one stream together. A flood of lines waits there for its turn: with 64 ranks and the
/// usual 64 KiB each the last of them comes 4 MiB later. A pipe has 8 KiB at least: with less the writers stop too
/// often.
constexpr int pipes_bytes = 512 << 10;
constexpr int pipe_bytes_min = 8 << 10;
constexpr int pipe_bytes_max = 64 << 10;
/// A terminal that stands still (Ctrl-S) must not stop the job: so much is kept for it, then lines are dropped.
constexpr std::size_t terminal_bytes_max = std::size_t{8} << 20;
/// What a stream may keep back while another shows an over-long line.
constexpr std::size_t held_bytes_max = std::size_t{256} << 10;
/// An over-long line that stands still so long is interrupted by others.
constexpr Duration hold_limit = std::chrono::seconds{1};
constexpr std::size_t read_bytes_max = std::size_t{64} << 10;
/// So many streams are read before the loop looks at anything else.
constexpr int streams_per_turn = 16;
/// A disk that answers later than that is taken for dead: what waited for it goes on with an error.
constexpr Duration disk_limit = std::chrono::seconds{10};
/// What is read of a dead worker's stream at once; a pipe holds 64 KiB.
constexpr std::size_t last_words_bytes_max = std::size_t{1} << 20;

TimePoint current_time() { return std::chrono::steady_clock::now(); }

bool colours_wanted() {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return (no_colour == nullptr || *no_colour == '\0') && terminal != nullptr && std::string_view{terminal} != "dumb";
}

/// On the log writer's thread. Errors: the system's, with the path.
Result<> make_files(const std::vector<std::string>& directories, const std::vector<LogWriter::File>& files) {
  if (auto made = make_directories(directories); !made) return made;
  for (const LogWriter::File& file : files)
    if (auto opened = LogWriter::open(*file); !opened) return opened;
  return {};
}

Error disk_is_dead(std::string context) {
  return Error{make_error_code(boost::system::errc::timed_out), std::move(context)};
}

struct Stream;

/// One of our own streams, and what is about to be written to it.
struct Console {
  std::string name;  ///< `stdout`, `stderr`
  int fd;
  std::unique_ptr<ConsoleWriter> writer;
  bool terminal = false;
  std::string batch;                ///< of this turn
  bool ends_line = true;            ///< the last byte shown was a line end
  bool full = false;                ///< its streams are not read
  Stream* holder = nullptr;         ///< shows an over-long line; others keep theirs back
  const void* open_line = nullptr;  ///< the stream whose text ended in the middle of a line; nothing: at a line's end
  std::uint64_t dropped = 0;        ///< bytes of a terminal that did not keep up
  std::uint64_t dropped_now = 0;
  std::uint64_t told = 0;                  ///< bytes lost, as the listener knows
  std::string reason = "it was too slow";  ///< for the loss
};

struct Worker {
  WorkerFiles files;
  OutputTail tail;
  TimePoint last_output;
};

/// One stream of one worker.
struct Stream {
  UniqueFd fd;  ///< our end; empty before take_child_streams and after the end
  bool watched = false;
  bool is_pty = false;
  bool alone = false;  ///< of the only worker: its bytes pass as they are
  StreamRoute route;
  OutputTail::Stream kind = OutputTail::Stream::out;
  Worker* worker = nullptr;
  Console* console = nullptr;  ///< empty when the stream is not shown
  LineSplitter splitter{LineRules{}};
  LogWriter::File log;
  LogWriter::File duplicates;
  std::string log_batch;
  std::string duplicates_batch;
  std::string held;
  TimePoint last_read;
};

/// What `add` appends to the console's text comes from `source`. A line that another stream left open, because it ended
/// or stood still in the middle of one, is ended first.
template <class Add>
void show_from(Console& console, const Stream& source, Add add) {
  const std::size_t before = console.batch.size();
  add(console.batch);
  if (console.batch.size() == before) return;
  if (console.open_line != nullptr && console.open_line != &source) console.batch.insert(before, 1, '\n');
  const char last = console.batch.back();
  console.open_line = last == '\n' || last == '\r' || source.alone ? nullptr : &source;
}

}  // namespace

struct Output::State {
  State(asio::io_context& io, OutputPlan the_plan, OutputListener the_listener)
      : loop{io}, plan{std::move(the_plan)}, listener{std::move(the_listener)}, post{io}, hold_timer{io} {}

  asio::io_context& loop;
  OutputPlan plan;
  OutputListener listener;
  LoopPost post;
  Console out;
  std::unique_ptr<Console> separate_err;  ///< empty when stdout and stderr are one file: then order between them counts
  std::unique_ptr<LogWriter> logs;
  bool logs_full = false;
  Timer hold_timer;
  std::optional<Result<RunDirectory>> made;  ///< the run directory, or why there is none
  RunDirectory run;                          ///< with what attempts have added to what goes at the end
  std::map<std::string, LogWriter::File> appended;
  std::map<std::string, std::uint64_t> log_losses;
  AttemptOutput::State* attempt = nullptr;  ///< the one that is being read
  std::array<char, read_bytes_max> buffer{};

  Console& err() { return separate_err ? *separate_err : out; }
  Console& console_of(OutputTail::Stream kind) { return kind == OutputTail::Stream::out ? out : err(); }

  void start_console(Console& console, std::string name, int fd) {
    console.name = std::move(name);
    console.fd = fd;
    console.writer = std::make_unique<ConsoleWriter>(
        fd, [this, where = console.name](const std::string& reason, std::uint64_t lost) {
          post([this, where, reason, lost] {
            Console& failed = where == err().name ? err() : out;
            failed.told = lost + failed.dropped;
            failed.reason = reason;
            listener(event::ConsoleLost{where, reason, failed.told});
          });
        });
    console.terminal = console.writer->is_terminal();
  }

  void show(Console& console);
  void show_all() {
    show(out);
    if (separate_err) show(*separate_err);
  }
  /// Runs `work` on the log writer's thread and waits for it without stopping the loop. Nothing when it takes longer
  /// than disk_limit; then it may still be running: it must own what it uses.
  template <class T>
  Task<std::optional<T>> on_log_thread(std::function<T()> work);
  /// Lets the log writer make the run directory, while we do other things.
  void order_run_directory();
  /// Waits for it. `made` stays empty when the disk is dead.
  Task<> await_run_directory();
  /// Waits until `call_when_done` has called its argument, at most `limit`. True: it has.
  Task<bool> until(std::function<void(std::function<void()>)> call_when_done, Duration limit);
};

struct AttemptOutput::State : std::enable_shared_from_this<AttemptOutput::State> {
  explicit State(Output::State& the_output) : output{the_output}, poll{the_output.loop}, drained{the_output.loop} {}

  Output::State& output;
  std::string directory;
  std::vector<Worker> workers;
  std::vector<LogWriter::File> files;
  std::vector<Stream> streams;          ///< 2 * local rank: stdout, + 1: stderr
  std::size_t next_turn = 0;            ///< index behind the stream that was read last
  std::vector<Stream*> touched;         ///< since the last flush; one may be in it more than once
  asio::posix::stream_descriptor poll;  ///< an epoll of all streams: one wait of the loop for all of them
  UniqueFd nothing;                     ///< /dev/null, once a worker reads it
  Timer drained;
  int open_streams = 0;
  bool draining = false;

  Stream& stream(LocalRank local_rank, OutputTail::Stream kind) {
    return streams[static_cast<std::size_t>(local_rank.value()) * 2 + (kind == OutputTail::Stream::out ? 0 : 1)];
  }
  Worker& worker(LocalRank local_rank) { return workers.at(static_cast<std::size_t>(local_rank.value())); }

  void prepare(const std::string& name, Rank first_rank);
  Result<UniqueFd> open_stream(Stream& stream, int own_fd);
  void wait();
  void turn();
  /// Returns how many bytes were read: 0 when there are none now, or the stream has ended.
  std::size_t read(Stream& stream, TimePoint now);
  void show(Stream& stream, std::string_view bytes, TimePoint now);
  void end(Stream& stream);
  void flush();
  void watch(Stream& stream);
  /// Those first whose turn would have been next: a flood stops and lets go all streams every few of them.
  void watch_all() {
    for (std::size_t i = 0; i < streams.size(); ++i) watch(streams[(next_turn + i) % streams.size()]);
  }
  void release(Console& console);
  void expect_release();
};

// ---- The consoles.

void Output::State::show(Console& console) {
  if (console.batch.empty()) return;
  if (console.terminal) {
    if (console.writer->queued_bytes() > terminal_bytes_max) {
      console.dropped += console.batch.size();
      console.dropped_now += console.batch.size();
      console.batch.clear();
      return;
    }
    if (console.dropped_now != 0) {
      console.batch.insert(0, "torchup: this terminal does not keep up: " + std::to_string(console.dropped_now) +
                                  " bytes of output are not shown\n");
      console.told = console.dropped + console.writer->bytes_lost();
      listener(event::ConsoleLost{console.name, "the terminal does not keep up", console.told});
      console.dropped_now = 0;
    }
  }
  console.ends_line = console.batch.back() == '\n';
  console.writer->write(std::exchange(console.batch, {}));
  if (console.terminal || console.full || console.writer->queued_bytes() <= queue_bytes_max) return;
  console.full = true;
  console.writer->when_at_most(queue_bytes_max / 2, [this, &console] {
    post([this, &console] {
      console.full = false;
      if (attempt != nullptr) attempt->watch_all();
    });
  });
}

Task<bool> Output::State::until(std::function<void(std::function<void()>)> call_when_done, Duration limit) {
  auto timer = std::make_shared<Timer>(loop);
  auto done = std::make_shared<bool>(false);
  timer->expires_after(limit);
  call_when_done([post = post, timer, done] {
    post([timer, done] {
      *done = true;
      timer->cancel();
    });
  });
  co_await timer->async_wait();
  co_return *done;
}

template <class T>
Task<std::optional<T>> Output::State::on_log_thread(std::function<T()> work) {
  auto timer = std::make_shared<Timer>(loop);
  auto result = std::make_shared<std::optional<T>>();
  timer->expires_after(disk_limit);
  logs->call([post = post, timer, result, work = std::move(work)] {
    auto answer = std::make_shared<T>(work());
    post([timer, result, answer] {
      *result = std::move(*answer);
      timer->cancel();
    });
  });
  co_await timer->async_wait();
  co_return std::move(*result);
}

void Output::State::order_run_directory() {
  made.reset();
  const bool for_logs =
      std::ranges::any_of(plan.workers, [](const WorkerRoutes& each) { return each.out.to_file || each.err.to_file; });
  logs->call([this, post = post, log_dir = plan.log_dir, run_id = plan.run_id, for_logs] {
    post([this, result = make_run_directory(log_dir, run_id, for_logs)] {
      made = result;
      if (!*made) return;
      run = **made;
    });
  });
}

Task<> Output::State::await_run_directory() {
  if (made) co_return;
  std::function<bool()> next_in_the_queue = [] { return true; };
  static_cast<void>(co_await on_log_thread(next_in_the_queue));
}

// ---- One attempt.

void AttemptOutput::State::prepare(const std::string& name, Rank first_rank) {
  const OutputPlan& plan = output.plan;
  const std::size_t count = plan.workers.size();
  workers.resize(count);
  streams.resize(2 * count);
  if (!output.run.path.empty()) directory = output.run.path + "/" + name;
  LogWriter::File duplicates[2];
  const std::vector<std::string>* filters[2] = {&plan.duplicate_stdout_filters, &plan.duplicate_stderr_filters};
  const char* stream_names[2] = {"stdout", "stderr"};
  for (std::size_t kind = 0; kind < 2; ++kind)
    if (!directory.empty() && !filters[kind]->empty())
      duplicates[kind] = LogWriter::log_file(directory + "/filtered_" + stream_names[kind] + ".log", 0);

  for (std::size_t index = 0; index < count; ++index) {
    Worker& one = workers[index];
    const LocalRank local_rank{static_cast<int>(index)};
    const Rank rank{first_rank.value() + local_rank.value()};
    one.last_output = current_time();
    if (!directory.empty()) {
      one.files.directory = directory + "/" + std::to_string(index);
      one.files.error_file = one.files.directory + "/error.json";
    }
    for (std::size_t kind = 0; kind < 2; ++kind) {
      Stream& made = streams[2 * index + kind];
      made.route = kind == 0 ? plan.workers[index].out : plan.workers[index].err;
      made.kind = kind == 0 ? OutputTail::Stream::out : OutputTail::Stream::err;
      made.worker = &one;
      if (made.route.to_console) made.console = &output.console_of(made.kind);
      if (made.route.to_file && !directory.empty()) {
        const std::string path = one.files.directory + "/" + stream_names[kind] + ".log";
        (kind == 0 ? one.files.stdout_log : one.files.stderr_log) = path;
        made.log = LogWriter::log_file(path, plan.log_max_bytes);
      }
      const bool terminal = made.console != nullptr && made.console->terminal;
      LineRules rules;
      rules.terminal = terminal;
      if (made.route.teed) {
        rules.form = LineRules::Form::prefixed;
        rules.duplicate_prefix = line_prefix(plan, rank, local_rank);
        rules.prefix =
            terminal ? terminal_line_prefix(plan, rank, local_rank, colours_wanted()) : rules.duplicate_prefix;
        rules.filters = *filters[kind];
        if (made.console != nullptr) made.duplicates = duplicates[kind];
      } else if (count > 1) {
        rules.form = LineRules::Form::whole_lines;
      }
      made.alone = rules.form == LineRules::Form::as_is;
      made.splitter = LineSplitter{std::move(rules)};
    }
  }
  for (const auto& file : duplicates)
    if (file) files.push_back(file);
  for (const Stream& each : streams)
    if (each.log) files.push_back(each.log);
}

Result<UniqueFd> AttemptOutput::State::open_stream(Stream& made, int own_fd) {
  if (!output.plan.capture && made.route == StreamRoute{}) {
    UniqueFd own{::fcntl(own_fd, F_DUPFD_CLOEXEC, 3)};
    if (!own) own.reset(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    if (!own) return system_error("/dev/null");
    return own;
  }
  UniqueFd child;
  if (made.console != nullptr && made.console->terminal && !made.route.teed) {
    if (auto pty = open_pty(own_fd)) {  // without one, a pipe shows all but the progress bars
      made.fd = std::move(pty->master);
      made.is_pty = true;
      child = std::move(pty->slave);
    }
  }
  if (!child) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return system_error("open a pipe for a worker's output");
    made.fd.reset(ends[0]);
    child.reset(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    const int bytes = std::clamp(pipes_bytes / static_cast<int>(workers.size()), pipe_bytes_min, pipe_bytes_max);
    if (bytes != pipe_bytes_max) ::fcntl(ends[0], F_SETPIPE_SZ, bytes);
  }
  ++open_streams;
  watch(made);
  return child;
}

void AttemptOutput::State::watch(Stream& watched) {
  const bool logs_full = watched.log && output.logs_full;
  const bool console_full = watched.console != nullptr && watched.console->full;
  const bool wanted = watched.fd && !logs_full && !console_full && watched.held.size() <= held_bytes_max;
  if (wanted == watched.watched) return;
  watched.watched = wanted;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = &watched;
  ::epoll_ctl(poll.native_handle(), wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, watched.fd.get(), &event);
}

void AttemptOutput::State::wait() {
  poll.async_wait(asio::posix::stream_descriptor::wait_read,
                  [weak = weak_from_this()](const boost::system::error_code& error) {
                    const auto self = weak.lock();
                    if (error || !self || self->output.attempt != self.get()) return;
                    self->turn();
                    self->wait();
                  });
}

void AttemptOutput::State::turn() {
  std::array<epoll_event, streams_per_turn> ready{};
  const int count = ::epoll_wait(poll.native_handle(), ready.data(), streams_per_turn, 0);
  const TimePoint now = current_time();
  for (int index = 0; index < count; ++index) {
    auto* each = static_cast<Stream*>(ready[static_cast<std::size_t>(index)].data.ptr);
    if (!each->watched) continue;
    read(*each, now);
    next_turn = static_cast<std::size_t>(each - streams.data()) + 1;
  }
  flush();
}

std::size_t AttemptOutput::State::read(Stream& source, TimePoint now) {
  const ssize_t count = ::read(source.fd.get(), output.buffer.data(), output.buffer.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (count <= 0) {  // a pty says EIO when its last user has gone
    end(source);
    return 0;
  }
  const std::string_view bytes{output.buffer.data(), static_cast<std::size_t>(count)};
  source.worker->last_output = source.last_read = now;
  source.worker->tail.feed(source.kind, bytes);
  touched.push_back(&source);
  if (source.log) source.log_batch += bytes;
  show(source, bytes, now);
  return bytes.size();
}

void AttemptOutput::State::show(Stream& source, std::string_view bytes, TimePoint now) {
  Console* console = source.console;
  if (console == nullptr) return;
  if (console->holder != nullptr && console->holder != &source) {
    source.splitter.feed(bytes, now, source.held, source.duplicates_batch);
    watch(source);
    return;
  }
  show_from(*console, source,
            [&](std::string& text) { source.splitter.feed(bytes, now, text, source.duplicates_batch); });
  if (source.splitter.mid_line() == (console->holder == &source)) return;
  if (console->holder == nullptr) {
    console->holder = &source;
    expect_release();
  } else {
    release(*console);
  }
}

/// The over-long line is complete, or has stood still for too long: the others' turn, in the order of their ranks.
void AttemptOutput::State::release(Console& console) {
  console.holder = nullptr;
  for (Stream& each : streams) {
    if (each.console != &console) continue;
    show_from(console, each, [&each](std::string& text) { text += std::exchange(each.held, {}); });
    watch(each);
    if (console.holder == nullptr && each.splitter.mid_line() && each.fd) console.holder = &each;
    if (console.holder != nullptr) break;
  }
  if (console.holder != nullptr) expect_release();
}

void AttemptOutput::State::expect_release() {
  output.hold_timer.expires_after(hold_limit);
  output.hold_timer.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || !self || self->output.attempt != self.get()) return;
    const TimePoint now = current_time();
    bool again = false;
    for (Console* console : {&self->output.out, &self->output.err()}) {
      if (console->holder == nullptr) continue;
      const bool awaited = std::any_of(self->streams.begin(), self->streams.end(), [console](const Stream& each) {
        return each.console == console && !each.held.empty();
      });
      if (!awaited || now - console->holder->last_read < hold_limit || console->full) {
        again = true;
        continue;
      }
      Stream& silent = *std::exchange(console->holder, nullptr);
      show_from(*console, silent, [&silent](std::string& text) { silent.splitter.break_line(text); });
      for (Stream& each : self->streams) {
        if (each.console != console || &each == &silent) continue;
        show_from(*console, each, [&each](std::string& text) { text += std::exchange(each.held, {}); });
        self->watch(each);
      }
    }
    self->flush();
    if (again) self->expect_release();
  });
}

void AttemptOutput::State::end(Stream& ended) {
  if (!ended.fd) return;
  if (ended.watched) {
    ended.watched = false;
    ::epoll_ctl(poll.native_handle(), EPOLL_CTL_DEL, ended.fd.get(), nullptr);
  }
  ended.fd.reset();
  touched.push_back(&ended);
  if (Console* console = ended.console; console != nullptr) {
    const bool waits = console->holder != nullptr && console->holder != &ended;
    if (waits) {
      ended.splitter.finish(ended.held, ended.duplicates_batch);
    } else {
      show_from(*console, ended, [&ended](std::string& text) { ended.splitter.finish(text, ended.duplicates_batch); });
    }
    if (console->holder == &ended) release(*console);
  }
  if (--open_streams == 0 && draining) drained.cancel();
}

void AttemptOutput::State::flush() {
  for (Stream* each : touched) {
    if (!each->log_batch.empty()) output.logs->write(each->log, std::exchange(each->log_batch, {}));
    if (!each->duplicates_batch.empty() && each->duplicates)
      output.logs->write(each->duplicates, std::exchange(each->duplicates_batch, {}));
    each->duplicates_batch.clear();
  }
  touched.clear();
  const bool consoles_full = output.out.full || output.err().full;
  const bool logs_full = output.logs_full;
  output.show_all();
  if (!output.logs_full && output.logs->queued_bytes() > queue_bytes_max) {
    output.logs_full = true;
    output.logs->when_at_most(queue_bytes_max / 2, [&all = output] {
      all.post([&all] {
        all.logs_full = false;
        if (all.attempt != nullptr) all.attempt->watch_all();
      });
    });
  }
  if (consoles_full != (output.out.full || output.err().full) || logs_full != output.logs_full) watch_all();
}

AttemptOutput::AttemptOutput(std::shared_ptr<State> state) : state_{std::move(state)} {}

AttemptOutput::~AttemptOutput() {
  Output::State& output = state_->output;
  if (output.attempt != state_.get()) return;
  for (Stream& each : state_->streams) state_->end(each);
  state_->flush();
  for (Console* console : {&output.out, &output.err()}) {
    console->holder = nullptr;
    if (console->open_line != nullptr) console->open_line = console;  // the stream goes, its open line stays
  }
  output.attempt = nullptr;
}

Result<ChildStreams> AttemptOutput::take_child_streams(LocalRank local_rank) {
  ChildStreams child;
  const bool alone = state_->workers.size() == 1;
  if (alone) child.in.reset(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  if (!child.in && !state_->nothing) {
    state_->nothing.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!state_->nothing) return system_error("/dev/null");
  }
  if (!child.in) child.in.reset(::fcntl(state_->nothing.get(), F_DUPFD_CLOEXEC, 3));
  if (!child.in) return system_error("/dev/null");
  auto out = state_->open_stream(state_->stream(local_rank, OutputTail::Stream::out), STDOUT_FILENO);
  if (!out) return out.error();
  auto err = state_->open_stream(state_->stream(local_rank, OutputTail::Stream::err), STDERR_FILENO);
  if (!err) return err.error();
  child.out = std::move(*out);
  child.err = std::move(*err);
  return child;
}

const WorkerFiles& AttemptOutput::files(LocalRank local_rank) const { return state_->worker(local_rank).files; }
const std::string& AttemptOutput::directory() const { return state_->directory; }
std::vector<std::string> AttemptOutput::tail(LocalRank local_rank) const {
  return state_->worker(local_rank).tail.lines();
}
std::vector<std::string> AttemptOutput::recent_lines(LocalRank local_rank) const {
  return state_->worker(local_rank).tail.all_lines();
}
TimePoint AttemptOutput::last_output(LocalRank local_rank) const { return state_->worker(local_rank).last_output; }

void AttemptOutput::worker_gone(LocalRank local_rank) {
  const TimePoint now = current_time();
  for (const auto kind : {OutputTail::Stream::out, OutputTail::Stream::err}) {
    Stream& source = state_->stream(local_rank, kind);
    std::size_t bytes = 0;
    while (source.fd && bytes < last_words_bytes_max) {
      const std::size_t count = state_->read(source, now);
      if (count == 0) break;
      bytes += count;
    }
  }
  state_->flush();
}

Task<> AttemptOutput::drain(Duration limit) {
  const auto state = state_;
  state->draining = true;
  state->drained.expires_after(limit);
  if (state->open_streams > 0) co_await state->drained.async_wait();
  for (Stream& each : state->streams) {
    if (!each.fd) continue;
    int unread = 0;
    ::ioctl(each.fd.get(), FIONREAD, &unread);
    if (unread > 0) {
      const std::string name = each.kind == OutputTail::Stream::out ? "stdout" : "stderr";
      state->output.listener(event::ConsoleLost{name + " of a worker", "it was not read to its end in time",
                                                static_cast<std::uint64_t>(unread)});
    }
    state->end(each);
  }
  state->flush();
  for (const LogWriter::File& file : state->files) state->output.logs->report_losses(file);
}

// ---- All attempts.

Output::Output(asio::io_context& loop, OutputPlan plan, OutputListener listener)
    : state_{std::make_unique<State>(loop, std::move(plan), std::move(listener))} {
  State* state = state_.get();
  state->start_console(state->out, "stdout", STDOUT_FILENO);
  if (!same_file(STDOUT_FILENO, STDERR_FILENO)) {
    state->separate_err = std::make_unique<Console>();
    state->start_console(*state->separate_err, "stderr", STDERR_FILENO);
  }
  state->logs = std::make_unique<LogWriter>([state](const LogWriter::Failure& failure) {
    state->post([state, failure] {
      state->log_losses[failure.path] = failure.bytes_lost;
      state->listener(event::LogWriteFailed{failure.path, failure.reason, failure.bytes_lost});
    });
  });
  // Not where the user keeps logs: a job that never starts leaves nothing there.
  if (state->plan.has_files() && state->plan.log_dir.empty()) state->order_run_directory();
}

Output::~Output() { state_->post.cut(); }

Task<Result<std::unique_ptr<AttemptOutput>>> Output::begin_attempt(std::string name, Rank first_rank) {
  State& state = *state_;
  const bool by_user = !state.plan.log_dir.empty();
  if (state.plan.has_files() && state.run.path.empty()) {
    if (by_user) state.order_run_directory();
    co_await state.await_run_directory();
    const auto made = state.made.value_or(disk_is_dead(by_user ? state.plan.log_dir : "TMPDIR"));
    if (!made && by_user) co_return made.error();
    if (!made) {
      state.listener(event::Warning{"no log directory, so no logs and no error files: " + made.error().message()});
      state.plan.log_dir = "/dev/null";
    }
  }

  auto attempt = std::make_shared<AttemptOutput::State>(state);
  UniqueFd poll{::epoll_create1(EPOLL_CLOEXEC)};
  if (!poll) co_return system_error("watch the workers' output");
  attempt->poll.assign(poll.release());
  attempt->prepare(name, first_rank);
  if (!attempt->directory.empty()) {
    std::vector<std::string> directories{attempt->directory};
    for (const Worker& worker : attempt->workers) directories.push_back(worker.files.directory);
    if (!state.run.temporary.empty())
      state.run.temporary.insert(state.run.temporary.end(), directories.begin(), directories.end());
    std::function<Result<>()> make = [directories = std::move(directories), files = attempt->files] {
      return make_files(directories, files);
    };
    auto made = co_await state.on_log_thread(make);
    if (!made) made = disk_is_dead(attempt->directory);
    if (!*made) co_return made->error();
  }
  state.attempt = attempt.get();
  attempt->wait();
  co_return std::unique_ptr<AttemptOutput>{new AttemptOutput{attempt}};
}

const std::string& Output::run_directory() const { return state_->run.path; }

void Output::print(std::string text) {
  Console& console = state_->err();
  const bool line_open = console.batch.empty() ? !console.ends_line : console.batch.back() != '\n';
  if (line_open) console.batch += '\n';
  console.open_line = nullptr;
  console.batch += printable(text);
  state_->show(console);
}

void Output::append(const std::string& path, std::string lines) {
  LogWriter::File& file = state_->appended[path];
  if (!file) file = LogWriter::appended_file(path);
  state_->logs->write(file, std::move(lines));
}

Task<Result<>> Output::replace_file(std::string path, std::string content) {
  std::function<Result<>()> replace = [path = std::move(path), content = std::move(content)] {
    return replace_file_now(path, content);
  };
  auto replaced = co_await state_->on_log_thread(replace);
  if (!replaced) replaced = disk_is_dead("write a file");
  co_return *replaced;
}

void Output::aside(std::function<void()> work) { state_->logs->call(std::move(work)); }

Task<bool> Output::finished_aside(std::function<void()> work) {
  std::function<bool()> done = [work = std::move(work)] {
    work();
    return true;
  };
  const auto finished = co_await state_->on_log_thread(done);
  co_return finished.has_value();
}

Task<LastWords> Output::read_last_words(std::string path) {
  if (path.empty()) co_return LastWords{};
  std::function<LastWords()> read = [path] { return torchup::read_last_words(path); };
  auto words = co_await state_->on_log_thread(read);
  LastWords none{.problem = "the disk does not answer"};
  co_return words ? *std::move(words) : std::move(none);
}

void Output::window_changed() {
  if (state_->attempt == nullptr) return;
  for (const Stream& each : state_->attempt->streams)
    if (each.fd && each.is_pty) copy_window_size(each.console->fd, each.fd.get());
}

Task<OutputLoss> Output::settle(Duration limit) {
  State& state = *state_;
  const TimePoint deadline = current_time() + limit;
  OutputLoss loss;
  state.show_all();
  for (const auto& [path, file] : state.appended) state.logs->report_losses(file);
  std::function<void(std::function<void()>)> logs_written = [&state](std::function<void()> done) {
    state.logs->when_at_most(0, std::move(done));
  };
  if (!co_await state.until(logs_written, deadline - current_time())) loss.log_bytes += state.logs->queued_bytes();
  for (const auto& [path, bytes] : state.log_losses) loss.log_bytes += bytes;
  for (Console* console : {&state.out, state.separate_err.get()}) {
    if (console == nullptr) continue;
    std::function<void(std::function<void()>)> shown = [console](std::function<void()> done) {
      console->writer->when_at_most(0, std::move(done));
    };
    const bool all_shown = co_await state.until(shown, deadline - current_time());
    const std::uint64_t waiting = all_shown ? 0 : console->writer->queued_bytes();
    const std::uint64_t lost = console->dropped + console->writer->bytes_lost() + waiting;
    if (lost > console->told) {
      console->told = lost;
      state.listener(event::ConsoleLost{console->name, all_shown ? console->reason : "nobody reads it", lost});
    }
    loss.console_bytes += lost;
  }
  co_return loss;
}

Task<OutputLoss> Output::finish(Duration limit) {
  if (state_->plan.has_files() && state_->plan.log_dir.empty()) co_await state_->await_run_directory();
  if (!state_->run.temporary.empty()) state_->logs->call([run = state_->run] { remove_temporary(run); });
  co_return co_await settle(limit);
}

}  // namespace torchup
