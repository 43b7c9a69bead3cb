#include "launcher/os/output/worker_output.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "launcher/core/text/text.hpp"
#include "launcher/os/output/terminal.hpp"

namespace torchup {
namespace {

/// A pipe leads to whoever, and a terminal may have another name.
bool may_be_seen_elsewhere(int fd) {
  struct stat file {};
  return ::fstat(fd, &file) == 0 && (S_ISFIFO(file.st_mode) || S_ISSOCK(file.st_mode) || ::isatty(fd) == 1);
}

/// On the disk thread. Errors: the system's, with the path.
Result<RunDirectory> make_all(const RunDirectory& run, const std::vector<std::string>& folders,
                              const std::vector<std::shared_ptr<LogFile>>& files) {
  auto made = make_directories(run, folders);
  if (!made) return made;
  for (const auto& file : files)
    if (auto opened = file->open_in(made->folder); !opened) return opened.error();
  return made;
}

}  // namespace

Output::Output(asio::io_context& loop, OutputPlan plan, OutputListener listener)
    : loop_{loop}, plan_{std::move(plan)}, listener_{std::move(listener)}, post_{loop}, disk_{loop}, appender_{loop},
      reader_{loop, disk_}, out_{loop, "stdout", STDOUT_FILENO, console_hooks()} {
  if (!same_file(STDOUT_FILENO, STDERR_FILENO))
    separate_err_ = std::make_unique<Console>(loop, "stderr", STDERR_FILENO, console_hooks());
  reader_.flushes(consoles());
  // Not where the user keeps logs: a job that never starts leaves nothing there.
  if (plan_.has_files() && plan_.log_dir.empty()) order_run_directory();
}

Output::~Output() { post_.cut(); }

Console::Hooks Output::console_hooks() {
  return {.tell = [this](EventBody body) { listener_(std::move(body)); },
          .has_room = [this] { reader_.watch_all(); },
          .read_more = [this] { return reader_.turn(); }};
}

std::vector<Console*> Output::consoles() {
  std::vector<Console*> all{&out_};
  if (separate_err_) all.push_back(separate_err_.get());
  return all;
}

// ---- Folders and files.

void Output::order_run_directory() {
  made_.reset();
  const bool for_logs =
      std::ranges::any_of(plan_.workers, [](const WorkerRoutes& each) { return each.out.to_file || each.err.to_file; });
  disk_.call([this, post = post_, log_dir = plan_.log_dir, run_id = plan_.run_id, for_logs] {
    post([this, result = make_run_directory(log_dir, run_id, for_logs)] {
      made_ = result;
      if (*made_) run_ = **made_;
    });
  });
}

Task<> Output::await_run_directory() {
  if (made_) co_return;
  static_cast<void>(co_await disk_.idle(disk_limit));
}

/// Errors: the system's, with the path; timed_out.
Task<Result<>> Output::make_folders_of(AttemptOutput& attempt) {
  const std::vector<std::string> folders = attempt.folders();
  if (!run_.temporary.empty())
    for (const std::string& folder : folders) run_.temporary.push_back(run_.path + "/" + folder);
  std::function<Result<RunDirectory>()> make = [run = run_, folders, files = attempt.files_] {
    return make_all(run, folders, files);
  };
  auto made = co_await disk_.ask(make);
  if (!made) co_return disk_is_dead(attempt.directory_);
  if (!*made) co_return made->error();
  run_ = **made;
  co_return Result<>{};
}

Task<Result<std::unique_ptr<AttemptOutput>>> Output::begin_attempt(std::string name, Rank first_rank) {
  const bool by_user = !plan_.log_dir.empty();
  const bool first = !std::exchange(begun_, true);
  if (plan_.has_files() && run_.path.empty()) {
    if (by_user) order_run_directory();
    co_await await_run_directory();
    const auto made = made_.value_or(disk_is_dead(by_user ? plan_.log_dir : "TMPDIR"));
    if (!made && by_user) co_return made.error();
    if (!made) {
      listener_(event::Warning{"no log directory, so no logs and no error files: " + made.error().message()});
      plan_.log_dir = "/dev/null";
    }
  }
  if (auto started = reader_.start(); !started) co_return started.error();
  std::unique_ptr<AttemptOutput> attempt{new AttemptOutput{*this, std::move(name), first_rank}};
  if (!attempt->directory_.empty()) {
    const auto made = co_await make_folders_of(*attempt);
    if (!made && by_user && first) co_return made.error();
    if (!made) {
      listener_(event::Warning{"no logs and no error files of this attempt: " + made.error().message()});
      const bool dead = made.error().code == make_error_code(boost::system::errc::timed_out);
      attempt->do_without_folders(dead);
    }
  }
  co_return attempt;
}

void Output::clear_left_behind() {
  if (std::exchange(cleared_, true) || run_.path.empty()) return;
  disk_.call([link = run_.temporary.empty() ? std::string{} : run_.temporary.front()] { remove_left_behind(link); });
}

Result<std::array<UniqueFd, 2>> Output::helper_streams(const std::string& prefix) {
  if (auto started = reader_.start(); !started) return started.error();
  std::array<UniqueFd, 2> theirs;
  for (const auto kind : {OutputTail::Stream::out, OutputTail::Stream::err}) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return system_error("open a pipe for a helper's output");
    UniqueFd ours{ends[0]};
    UniqueFd& child = theirs[kind == OutputTail::Stream::out ? 0 : 1];
    child.reset(ends[1]);
    ::fcntl(ends[1], F_SETFL, 0);
    StreamTargets targets;
    targets.kind = kind;
    targets.memory = std::make_shared<WorkerMemory>();
    targets.console = &console_of(kind);
    targets.rules.form = LineRules::Form::prefixed;
    targets.rules.prefix = prefix;
    targets.rules.terminal = targets.console->is_terminal();
    helper_streams_.push_back(std::make_unique<WorkerStream>(reader_, std::move(targets), [] {}));
    helper_streams_.back()->open(std::move(ours), /*is_pty=*/false);
  }
  return theirs;
}

void Output::end_helpers() {
  for (const auto& stream : helper_streams_) {
    if (!stream->is_open()) continue;
    stream->read_rest();
    stream->close();
  }
}

LogFile::Listener Output::log_listener() {
  return [this](const LogFile::Failure& failure) { tell_log_loss(failure.path, failure.reason, failure.bytes_lost); };
}

void Output::tell_log_loss(const std::string& path, std::string reason, std::uint64_t bytes) {
  log_losses_[path] = bytes;
  listener_(event::LogWriteFailed{path, std::move(reason), bytes});
}

void Output::append(const std::string& path, std::string lines) {
  std::shared_ptr<LogFile>& file = appended_[path];
  if (!file) file = LogFile::appended(appender_, path, log_listener());
  // One that is longer than all that may wait passes alone: no reader is to blame for its length.
  const std::size_t queued = appender_.queued_bytes();
  if (queued == 0 || queued + lines.size() <= appended_bytes_max) return file->write(std::move(lines));
  file->lose(lines.size());
  const TimePoint now = std::chrono::steady_clock::now();
  if (appended_told_ && now - *appended_told_ < loss_interval) return;
  appended_told_ = now;  // before it is told: that becomes an event too
  tell_log_loss(path, "its reader does not keep up", file->bytes_lost());
}

Task<LastWords> Output::read_last_words(std::string path, Duration limit) {
  if (path.empty()) co_return LastWords{};
  std::function<LastWords()> read = [path] { return torchup::read_last_words(path); };
  auto words = co_await disk_.ask(read, limit);
  LastWords none{.problem = "the disk does not answer"};
  co_return words ? *std::move(words) : std::move(none);
}

// ---- Consoles.

void Output::print(const std::string& text) { print_coloured(printable_lines(text)); }

void Output::print_coloured(const std::string& text) {
  err().turns().own(text, err().batch());
  err().flush();
}

bool Output::shows_colours() { return err().is_terminal() && colours_wanted(); }

void Output::show_status(pid_t launcher, std::function<std::string(TimePoint)> text) {
  if (!err().is_terminal() || is_dumb_terminal() || !plan_.capture) return;
  if (separate_err_ && may_be_seen_elsewhere(STDOUT_FILENO)) out_.seen_on(err());
  err().show_status(launcher, std::move(text));
}

void Output::window_changed() { reader_.window_changed(); }

// ---- The end.

/// Waits for all files, and counts what cannot be written in time.
Task<> Output::settle_files(Duration limit) {
  const TimePoint deadline = std::chrono::steady_clock::now() + limit;
  for (const auto& [path, file] : appended_) file->report_losses();
  for (DiskThread* disk : {&disk_, &appender_}) {
    const bool written = co_await disk->idle(std::max(Duration::zero(), deadline - std::chrono::steady_clock::now()));
    if (written) continue;
    if (disk == &disk_) tell_log_loss(run_.path, "the disk does not answer", disk_.queued_bytes());
    if (disk == &appender_)
      for (const auto& [path, file] : appended_)
        tell_log_loss(path, "its reader does not read", file->bytes_lost() + appender_.queued_bytes());
  }
}

std::uint64_t Output::log_bytes_lost() const {
  std::uint64_t bytes = 0;
  for (const auto& [path, lost] : log_losses_) bytes += lost;
  return bytes;
}

Task<OutputLoss> Output::settle(Duration limit) {
  const TimePoint deadline = std::chrono::steady_clock::now() + limit;
  co_await settle_files(limit);
  OutputLoss loss;
  for (Console* console : consoles()) {
    console->flush();
    static_cast<void>(
        co_await console->written(std::max(Duration::zero(), deadline - std::chrono::steady_clock::now())));
    loss.console_bytes += console->tell_losses(/*given_up=*/false);
  }
  loss.log_bytes = log_bytes_lost();
  co_return loss;
}

Task<OutputLoss> Output::finish(Duration limit, Patience patience) {
  end_status();
  if (plan_.has_files() && plan_.log_dir.empty()) co_await await_run_directory();
  if (!run_.temporary.empty()) disk_.call([run = run_] { remove_temporary(run); });
  const TimePoint deadline = std::chrono::steady_clock::now() + limit;
  co_await settle_files(limit);
  OutputLoss loss;
  for (Console* console : consoles()) {
    console->flush();
    const bool patient = patience == Patience::as_cat && !hurried_ && !console->is_terminal();
    std::optional<Duration> most;
    if (!patient) most = std::max(Duration::zero(), deadline - std::chrono::steady_clock::now());
    const bool written = co_await console->written(most);
    loss.console_bytes += console->tell_losses(!written);
  }
  loss.log_bytes = log_bytes_lost();
  co_return loss;
}

void Output::hurry() {
  hurried_ = true;
  for (Console* console : consoles()) console->hurry();
}

}  // namespace torchup
