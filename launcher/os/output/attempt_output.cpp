#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "launcher/os/io/pty.hpp"
#include "launcher/os/output/terminal.hpp"
#include "launcher/os/output/worker_output.hpp"

namespace torchup {
namespace {

/// Of all workers' pipes for one stream together. A flood of lines waits there for its turn: with 64 ranks and the
/// usual 64 KiB each the last of them comes 4 MiB later. A pipe has 8 KiB at least: with less the writers stop too
/// often.
constexpr int pipes_bytes = 512 << 10;
constexpr int pipe_bytes_min = 8 << 10;
constexpr int pipe_bytes_max = 64 << 10;

constexpr OutputTail::Stream kinds[] = {OutputTail::Stream::out, OutputTail::Stream::err};

const char* name_of(OutputTail::Stream kind) { return kind == OutputTail::Stream::out ? "stdout" : "stderr"; }
std::size_t index_of(OutputTail::Stream kind) { return kind == OutputTail::Stream::out ? 0 : 1; }

}  // namespace

struct AttemptOutput::Worker {
  WorkerFiles files;
  StreamRoute routes[2];
  std::shared_ptr<WorkerMemory> memory = std::make_shared<WorkerMemory>();
  std::unique_ptr<WorkerStream> streams[2];  ///< the second is empty where the first is both
};

AttemptOutput::AttemptOutput(Output& output, std::string name, Rank first_rank)
    : output_{output}, name_{std::move(name)} {
  const OutputPlan& plan = output.plan_;
  if (!output.run_.path.empty()) directory_ = output.run_.path + "/" + name_;
  const std::vector<std::string>* filters[2] = {&plan.duplicate_stdout_filters, &plan.duplicate_stderr_filters};
  for (const auto kind : kinds) {
    if (directory_.empty() || filters[index_of(kind)]->empty()) continue;
    const std::string file = fmt::format("/filtered_{}.log", name_of(kind));
    files_.push_back(
        LogFile::created(output.disk_, name_ + file, directory_ + file, /*bytes_max=*/0, output.log_listener()));
    duplicates_[index_of(kind)] = files_.back();
  }
  const auto now = std::chrono::steady_clock::now();
  const auto ended = [this] {
    if (drained_ && is_drained()) drained_->cancel();
  };
  // What goes to one place keeps its order only on one way.
  const bool one_console = output.separate_err_ == nullptr && plan.capture;
  for (std::size_t index = 0; index < plan.workers.size(); ++index) {
    Worker& one = *workers_.emplace_back(std::make_unique<Worker>());
    one.routes[0] = plan.workers[index].out;
    one.routes[1] = plan.workers[index].err;
    one.memory->last_output = now;
    if (!directory_.empty()) {
      one.files.directory = fmt::format("{}/{}", directory_, index);
      one.files.error_file = one.files.directory + "/error.json";
    }
    const bool both = one_console && one.routes[0] == StreamRoute{} && one.routes[1] == StreamRoute{};
    one.streams[0] =
        std::make_unique<WorkerStream>(output.reader_, targets(index, OutputTail::Stream::out, first_rank), ended);
    if (!both)
      one.streams[1] =
          std::make_unique<WorkerStream>(output.reader_, targets(index, OutputTail::Stream::err, first_rank), ended);
  }
}

StreamTargets AttemptOutput::targets(std::size_t index, OutputTail::Stream kind, Rank first_rank) {
  const OutputPlan& plan = output_.plan_;
  Worker& one = *workers_[index];
  const StreamRoute& route = one.routes[index_of(kind)];
  const LocalRank local_rank{static_cast<int>(index)};
  const Rank rank{first_rank.value() + local_rank.value()};
  StreamTargets made;
  made.kind = kind;
  made.memory = one.memory;
  if (route.to_console) made.console = &output_.console_of(kind);
  if (route.to_file && !directory_.empty()) {
    const std::string file = fmt::format("/{}/{}.log", index, name_of(kind));
    made.log =
        LogFile::created(output_.disk_, name_ + file, directory_ + file, plan.log_max_bytes, output_.log_listener());
    files_.push_back(made.log);
    (kind == OutputTail::Stream::out ? one.files.stdout_log : one.files.stderr_log) = made.log->path();
  }
  made.rules.terminal = made.console != nullptr && made.console->is_terminal();
  if (route.teed) {
    made.rules.form = LineRules::Form::prefixed;
    made.rules.duplicate_prefix = line_prefix(plan, rank, local_rank);
    made.rules.prefix = made.rules.terminal ? terminal_line_prefix(plan, rank, local_rank, colours_wanted())
                                            : made.rules.duplicate_prefix;
    made.rules.filters =
        kind == OutputTail::Stream::out ? plan.duplicate_stdout_filters : plan.duplicate_stderr_filters;
    if (made.console != nullptr) made.duplicates = duplicates_[index_of(kind)];
  } else if (plan.workers.size() > 1) {
    made.rules.form = LineRules::Form::whole_lines;
  }
  return made;
}

AttemptOutput::~AttemptOutput() = default;

AttemptOutput::Worker& AttemptOutput::worker(LocalRank local_rank) const {
  return *workers_.at(static_cast<std::size_t>(local_rank.value()));
}

std::vector<std::string> AttemptOutput::folders() const {
  std::vector<std::string> names{name_};
  for (std::size_t index = 0; index < workers_.size(); ++index) names.push_back(fmt::format("{}/{}", name_, index));
  return names;
}

/// What is written to the files is lost then, and counted; to a dead disk it is not even given, for it would stop who
/// writes it.
void AttemptOutput::do_without_folders(bool disk_is_dead) {
  directory_.clear();
  for (const auto& each : workers_) each->files = {};
  if (disk_is_dead)
    for (const auto& file : files_) file->give_up();
}

Result<UniqueFd> AttemptOutput::open_stream(WorkerStream& stream, const StreamRoute& route, OutputTail::Stream kind) {
  const int own_fd = kind == OutputTail::Stream::out ? STDOUT_FILENO : STDERR_FILENO;
  if (!output_.plan_.capture && route == StreamRoute{}) {
    UniqueFd own{::fcntl(own_fd, F_DUPFD_CLOEXEC, 3)};
    if (!own) own.reset(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    if (!own) return system_error("/dev/null");
    return own;
  }
  UniqueFd ours;
  UniqueFd child;
  const bool terminal = route.to_console && !route.teed && output_.console_of(kind).is_terminal();
  if (terminal) {
    if (auto pty = open_pty(own_fd)) {  // without one, a pipe shows all but the progress bars
      ours = std::move(pty->master);
      child = std::move(pty->slave);
    }
  }
  const bool is_pty = static_cast<bool>(child);
  if (!is_pty) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return system_error("open a pipe for a worker's output");
    ours.reset(ends[0]);
    child.reset(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    const int bytes = std::clamp(pipes_bytes / static_cast<int>(workers_.size()), pipe_bytes_min, pipe_bytes_max);
    if (bytes != pipe_bytes_max) ::fcntl(ends[0], F_SETPIPE_SZ, bytes);
  }
  stream.open(std::move(ours), is_pty);
  return child;
}

Result<ChildStreams> AttemptOutput::take_child_streams(LocalRank local_rank) {
  Worker& one = worker(local_rank);
  ChildStreams child;
  child.in.reset(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  if (!child.in) child.in.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!child.in) return system_error("/dev/null");
  auto first = open_stream(*one.streams[0], one.routes[0], OutputTail::Stream::out);
  if (!first) return first.error();
  child.out = std::move(*first);
  if (one.streams[1]) {
    auto second = open_stream(*one.streams[1], one.routes[1], OutputTail::Stream::err);
    if (!second) return second.error();
    child.err = std::move(*second);
  } else {
    child.err.reset(::fcntl(child.out.get(), F_DUPFD_CLOEXEC, 3));
    if (!child.err) return system_error("a descriptor for a worker's stderr");
  }
  return child;
}

const WorkerFiles& AttemptOutput::files(LocalRank local_rank) const { return worker(local_rank).files; }
const std::string& AttemptOutput::directory() const { return directory_; }
std::vector<std::string> AttemptOutput::tail(LocalRank local_rank) const {
  return worker(local_rank).memory->tail.lines();
}
std::vector<std::string> AttemptOutput::recent_lines(LocalRank local_rank) const {
  return worker(local_rank).memory->tail.all_lines();
}
OutputTail::Kept AttemptOutput::kept(LocalRank local_rank, OutputTail::Stream stream) const {
  return worker(local_rank).memory->tail.of(stream);
}
TimePoint AttemptOutput::last_output(LocalRank local_rank) const { return worker(local_rank).memory->last_output; }

void AttemptOutput::worker_gone(LocalRank local_rank) {
  for (const auto& stream : worker(local_rank).streams)
    if (stream) stream->read_rest();
  output_.reader_.flush();
}

void AttemptOutput::adopt(AttemptOutput& before, LocalRank local_rank) {
  for (const auto kind : kinds) {
    const std::size_t index = index_of(kind);
    const auto& from = before.worker(local_rank).streams[index];
    if (from) from->hand_over(*worker(local_rank).streams[index]);
  }
  output_.reader_.flush();
}

bool AttemptOutput::is_drained() const {
  for (std::size_t index = 0; index < workers_.size(); ++index) {
    if (std::ranges::find(kept_, LocalRank{static_cast<int>(index)}) != kept_.end()) continue;
    for (const auto& stream : workers_[index]->streams)
      if (stream && stream->is_open()) return false;
  }
  return true;
}

Task<> AttemptOutput::drain(Duration limit, std::vector<LocalRank> kept) {
  kept_ = std::move(kept);
  if (!is_drained()) {
    const auto timer = drained_ = std::make_shared<Timer>(output_.loop_);
    timer->expires_after(limit);
    co_await timer->async_wait();
    drained_.reset();
  }
  for (std::size_t index = 0; index < workers_.size(); ++index) {
    if (std::ranges::find(kept_, LocalRank{static_cast<int>(index)}) != kept_.end()) continue;
    for (const auto kind : kinds) {
      const auto& stream = workers_[index]->streams[index_of(kind)];
      if (!stream || !stream->is_open()) continue;
      stream->read_rest();  // it is not watched where nobody reads what we show
      if (!stream->is_open()) continue;
      if (const int unread = stream->unread(); unread > 0)
        output_.listener_(event::ConsoleLost{fmt::format("{} of a worker", name_of(kind)),
                                             "it was not read to its end in time", static_cast<std::uint64_t>(unread)});
      stream->close();
    }
  }
  output_.reader_.flush();
  for (const auto& file : files_) file->report_losses();
}

}  // namespace torchup
