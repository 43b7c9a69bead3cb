#include "launcher/os/worker_output.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "launcher/os/named_file.hpp"
#include "launcher/os/pty.hpp"

using namespace torchup;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

std::string content(const fs::path& path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

struct TemporaryDirectory {
  fs::path path;
  TemporaryDirectory() {
    std::string name = (fs::temp_directory_path() / "output_test_XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

/// Our own stdout or stderr is something else while this lives.
class Replaced {
 public:
  Replaced(int number, int by) : number_{number}, before_{::fcntl(number, F_DUPFD_CLOEXEC, 100)} { ::dup2(by, number); }
  ~Replaced() { ::dup2(before_.get(), number_); }

 private:
  int number_;
  UniqueFd before_;
};

UniqueFd create(const fs::path& path) {
  UniqueFd fd{::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600)};
  REQUIRE(fd);
  return fd;
}

/// A shell command with these descriptors; true children of this process.
class Child {
 public:
  Child(const std::string& command, ChildStreams streams) {
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, streams.in.get(), 0);
    ::posix_spawn_file_actions_adddup2(&actions, streams.out.get(), 1);
    ::posix_spawn_file_actions_adddup2(&actions, streams.err.get(), 2);
    std::string shell = "sh";
    std::string flag = "-c";
    std::string text = command;
    std::array<char*, 4> arguments{shell.data(), flag.data(), text.data(), nullptr};
    REQUIRE(::posix_spawn(&pid_, "/bin/sh", &actions, nullptr, arguments.data(), environ) == 0);
    ::posix_spawn_file_actions_destroy(&actions);
  }
  Child(Child&& other) noexcept : pid_{std::exchange(other.pid_, -1)} {}
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  bool ended() {
    if (pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = -1;
    return pid_ <= 0;
  }

 private:
  pid_t pid_ = -1;
};

/// One job's output on one node: what our stdout and stderr got, what the files hold.
struct Job {
  TemporaryDirectory scratch;
  OutputOptions options;
  std::vector<std::string> commands;
  Duration drain_limit = 1s;
  int attempts = 1;
  Output::Patience patience = Output::Patience::limited;
  std::function<void(Output&)> between_attempts = [](Output&) {};
  std::function<void(Output&, AttemptOutput&)> while_running = [](Output&, AttemptOutput&) {};

  std::string out;
  std::string err;
  std::vector<EventBody> told;
  std::vector<std::vector<std::string>> tails;
  OutputLoss loss;
  std::vector<WorkerFiles> files;
  std::string run_directory;

  [[nodiscard]] fs::path log_dir() const { return scratch.path / "logs"; }

  void run() {
    UniqueFd out_file = create(scratch.path / "out");
    UniqueFd err_file = create(scratch.path / "err");
    run_on(out_file.get(), err_file.get());
    out = content(scratch.path / "out");
    err = content(scratch.path / "err");
  }

  void run_on(int out_fd, int err_fd) {
    const Replaced new_out{STDOUT_FILENO, out_fd};
    const Replaced new_err{STDERR_FILENO, err_fd};
    auto plan = make_output_plan(options, static_cast<int>(commands.size()), "default", "vm", "run/1");
    REQUIRE(plan.has_value());
    asio::io_context loop{1};
    Output output{loop, *plan, [this](EventBody event) { told.push_back(std::move(event)); }};
    spawn(loop, "job", go(output));
    loop.run();
  }

  Task<> go(Output& output) {
    for (int attempt = 0; attempt < attempts; ++attempt) {
      auto begun = co_await output.begin_attempt(attempt_name(attempt, 0, Round{attempt}), Rank{0});
      REQUIRE(begun.has_value());
      AttemptOutput& streams = **begun;
      std::vector<Child> children;
      files.clear();
      for (std::size_t worker = 0; worker < commands.size(); ++worker) {
        const LocalRank local_rank{static_cast<int>(worker)};
        auto taken = streams.take_child_streams(local_rank);
        REQUIRE(taken.has_value());
        files.push_back(streams.files(local_rank));
        children.emplace_back(commands[worker], std::move(*taken));
      }
      while_running(output, streams);
      Timer timer{co_await asio::this_coro::executor};
      const auto give_up = std::chrono::steady_clock::now() + 20s;
      while (!std::all_of(children.begin(), children.end(), [](Child& child) { return child.ended(); })) {
        REQUIRE(std::chrono::steady_clock::now() < give_up);
        timer.expires_after(1ms);
        co_await timer.async_wait();
      }
      tails.clear();
      for (std::size_t worker = 0; worker < commands.size(); ++worker) {
        streams.worker_gone(LocalRank{static_cast<int>(worker)});
        tails.push_back(streams.tail(LocalRank{static_cast<int>(worker)}));
      }
      co_await streams.drain(drain_limit);
      begun->reset();
      between_attempts(output);
    }
    run_directory = output.run_directory();
    loss = co_await output.finish(5s, patience);
  }
};

template <class Event>
std::vector<Event> only(const std::vector<EventBody>& events) {
  std::vector<Event> found;
  for (const EventBody& event : events)
    if (const auto* one = std::get_if<Event>(&event)) found.push_back(*one);
  return found;
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace

TEST_CASE("without redirects bytes pass unchanged", "[process][output]") {
  Job job;
  job.commands = {R"(printf 'a\r\n\377b'; printf 'err' >&2)"};
  job.run();
  CHECK(job.out ==
        "a\r\n\xff"
        "b");
  CHECK(job.err == "err");
  CHECK(job.told.empty());
  INFO(job.run_directory);
  CHECK_FALSE(job.run_directory.empty());
  CHECK_FALSE(fs::exists(job.run_directory));  // nothing was written in the temporary log directory
}

TEST_CASE("all workers have our own stdin", "[process][output]") {
  TemporaryDirectory scratch;
  std::ofstream{scratch.path / "in"} << "typed\n";
  UniqueFd in{::open((scratch.path / "in").c_str(), O_RDONLY | O_CLOEXEC)};
  const Replaced new_in{STDIN_FILENO, in.get()};
  Job several;
  several.commands = {"readlink /proc/self/fd/0", "readlink /proc/self/fd/0"};
  several.run();
  const std::string line = (scratch.path / "in").string() + "\n";
  CHECK(several.out == line + line);
  Job alone;
  alone.commands = {"cat"};
  alone.run();
  CHECK(alone.out == "typed\n");
}

TEST_CASE("where our two streams are one file a worker's keep their order", "[process][output]") {
  constexpr int lines = 2000;
  const std::size_t workers = GENERATE(std::size_t{1}, std::size_t{3});
  const bool terminal = GENERATE(false, true);
  Job job;
  const std::string both =
      "i=0; while [ $i -lt " + std::to_string(lines) + " ]; do echo $i; echo $((i+1)) >&2; i=$((i+2)); done";
  job.commands.assign(workers, both);
  std::string text;
  if (terminal) {
    auto screen = open_pty(-1);
    REQUIRE(screen.has_value());
    std::atomic<bool> over = false;
    std::thread reader{[&] {
      std::array<char, 65536> buffer{};
      for (bool last = false; !last;) {
        last = over;
        for (ssize_t count = 0; (count = ::read(screen->master.get(), buffer.data(), buffer.size())) > 0;)
          text.append(buffer.data(), static_cast<std::size_t>(count));
        std::this_thread::sleep_for(1ms);
      }
    }};
    job.run_on(screen->slave.get(), screen->slave.get());
    over = true;
    reader.join();
  } else {
    UniqueFd file = create(job.scratch.path / "both");
    job.run_on(file.get(), file.get());
    text = content(job.scratch.path / "both");
  }
  // Of one worker all lines ascend; of several each has its own ascending order, so no line stands before its half.
  std::vector<int> seen(lines, 0);
  std::size_t at = 0;
  for (std::size_t line = 0; line < lines * workers; ++line) {
    const auto end = text.find('\n', at);
    REQUIRE(end != std::string::npos);
    const auto number = static_cast<std::size_t>(std::stoi(text.substr(at, end - at)));
    at = end + 1;
    ++seen.at(number);
    if (number > 0) REQUIRE(seen[number] <= seen[number - 1]);
  }
  CHECK(at == text.size());
}

TEST_CASE("streams that go to different places are kept apart", "[process][output]") {
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.tee = "3";
  job.commands = {"echo out; echo err >&2"};
  UniqueFd file = create(job.scratch.path / "both");
  job.run_on(file.get(), file.get());
  CHECK(sorted_lines(content(job.scratch.path / "both")) ==
        std::vector<std::string>{"[default0]:err", "[default0]:out"});
  CHECK(content(job.files[0].stdout_log) == "out\n");
  CHECK(content(job.files[0].stderr_log) == "err\n");
}

TEST_CASE("a half line is shown while its worker works on", "[process][output]") {
  Job job;
  const std::string tee = GENERATE("0", "1");
  job.options.log_dir = job.log_dir();
  job.options.tee = tee;
  // The worker goes on only when its half line is there to be read.
  const std::string shown = (job.scratch.path / "out").string();
  job.commands = {"printf 'Loading... '; until grep -q Loading " + shown + "; do sleep 0.01; done; echo done", "true"};
  job.run();
  CHECK(job.out == (tee == "1" ? "[default0]:Loading... done\n" : "Loading... done\n"));
}

TEST_CASE("tee writes files byte for byte and prefixes the console", "[process][output]") {
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.tee = "3";
  job.commands = {R"(printf 'abc'; sleep 0.1; printf 'def\n\377'; printf 'e\n' >&2)", R"(echo one; echo two >&2)"};
  job.run();
  CHECK(sorted_lines(job.out) == std::vector<std::string>{"[default0]:abcdef", "[default0]:\uFFFD", "[default1]:one"});
  CHECK(sorted_lines(job.err) == std::vector<std::string>{"[default0]:e", "[default1]:two"});
  CHECK(content(job.files[0].stdout_log) == "abcdef\n\xff");
  CHECK(content(job.files[1].stderr_log) == "two\n");
  const std::string& run = job.run_directory;
  CHECK(fs::path{run}.parent_path() == job.log_dir());
  CHECK(fs::path{run}.filename().string().starts_with("run_1_"));
  CHECK((fs::status(run).permissions() & fs::perms::all) == fs::perms::owner_all);
  CHECK(job.files[1].stdout_log == run + "/attempt_0/1/stdout.log");
  CHECK(job.files[1].error_file == run + "/attempt_0/1/error.json");
}

TEST_CASE("redirects write files only, the rank filter hides", "[process][output]") {
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.redirects = "1";
  job.options.local_ranks_filter = "1";
  job.commands = {"echo out0; echo err0 >&2", "echo out1; echo err1 >&2"};
  job.run();
  CHECK(job.out.empty());
  CHECK(job.err == "err1\n");
  CHECK(content(job.files[0].stdout_log) == "out0\n");
  CHECK(job.files[0].stderr_log.empty());
  CHECK(job.tails[0].size() == 2);  // hidden, and yet there when the worker's death is to be explained
}

TEST_CASE("duplicate filters collect lines of all teed streams", "[process][output]") {
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.tee = "1";
  job.options.duplicate_stdout_filters = {"apple"};
  job.options.duplicate_stderr_filters = {"apple"};
  job.commands = {"echo an apple; echo pear; echo apple >&2", "echo apple 1"};
  job.run();
  CHECK(sorted_lines(content(job.run_directory + "/attempt_0/filtered_stdout.log")) ==
        std::vector<std::string>{"[default0]:an apple", "[default1]:apple 1"});
  CHECK(fs::exists(job.run_directory + "/attempt_0/filtered_stderr.log"));
  CHECK(content(job.run_directory + "/attempt_0/filtered_stderr.log").empty());  // stderr is not teed
}

TEST_CASE("every attempt has files of its own", "[process][output]") {
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.redirects = "1";
  job.attempts = 3;
  job.commands = {"echo x"};
  job.run();
  for (const char* attempt : {"attempt_0", "attempt_1", "attempt_2"})
    CHECK(content(job.run_directory + "/" + attempt + "/0/stdout.log") == "x\n");
}

TEST_CASE("lines of many ranks are never torn and none is lost", "[process][output]") {
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.tee = "1";
  constexpr int ranks = 8;
  constexpr int lines = 2000;
  for (int rank = 0; rank < ranks; ++rank)
    job.commands.push_back("i=0; while [ $i -lt " + std::to_string(lines) + " ]; do echo rank " + std::to_string(rank) +
                           " line $i ....................................................; i=$((i+1)); done");
  job.run();
  std::vector<int> next(ranks, 0);
  std::size_t at = 0;
  for (int line = 0; line < ranks * lines; ++line) {
    const auto end = job.out.find('\n', at);
    REQUIRE(end != std::string::npos);
    int prefix = -1;
    int rank = -1;
    int number = -1;
    char dots[100] = "";
    const std::string text = job.out.substr(at, end - at);
    REQUIRE(std::sscanf(text.c_str(), "[default%d]:rank %d line %d %99s", &prefix, &rank, &number, dots) == 4);
    REQUIRE(prefix == rank);
    REQUIRE(number == next.at(static_cast<std::size_t>(rank))++);
    REQUIRE(std::string{dots} == std::string(52, '.'));
    at = end + 1;
  }
  CHECK(at == job.out.size());
}

TEST_CASE("a grandchild that keeps the pipe does not keep us", "[process][output]") {
  Job job;
  job.drain_limit = 200ms;
  job.commands = {"sleep 300 & echo $!; printf last"};
  const auto begin = std::chrono::steady_clock::now();
  job.run();
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
  CHECK(job.out.ends_with("\nlast"));
  ::kill(std::stoi(job.out), SIGKILL);
}

TEST_CASE("a worker may close its output", "[process][output]") {
  Job job;
  job.commands = {"echo a; exec >&-; exec 2>&-; sleep 0.1", "echo b"};
  job.run();
  CHECK(sorted_lines(job.out) == std::vector<std::string>{"a", "b"});
}

TEST_CASE("megabytes without a line end pass whole, nobody between", "[process][output]") {
  constexpr std::size_t size = 20'000'000;
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.redirects = "1:1";
  job.commands = {"head -c " + std::to_string(size) + " /dev/zero | tr '\\0' x; echo",
                  "yes y | head -n 300000 >&2; echo no"};
  job.options.tee = "0:1";
  job.run();
  CHECK(job.out.size() == size + std::string{"[default0]:\n"}.size());
  CHECK(std::count(job.out.begin(), job.out.end(), '\n') == 1);
  CHECK(fs::file_size(job.files[0].stdout_log) == size + 1);
  CHECK(job.err.size() == 600'000);
}

TEST_CASE("an over-long line that stands still does not stop the others", "[process][output]") {
  // Rank 0 stops within its line until rank 1's line was shown: without the limit on holding both would wait for ever.
  Job job;
  const std::string shown = (job.scratch.path / "out").string();
  job.commands = {"head -c 100000 /dev/zero | tr '\\0' x; until grep -q other " + shown + "; do sleep 0.01; done; echo",
                  "sleep 0.1; echo other"};
  job.run();
  CHECK(job.out == std::string(100'000, 'x') + "\nother\n\n");
}

TEST_CASE("log files are rotated at line ends", "[process][output]") {
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.redirects = "1";
  job.options.log_max_bytes = 100;
  job.commands = {"i=10; while [ $i -lt 50 ]; do echo line $i; i=$((i+1)); done"};
  job.run();
  const std::string last = content(job.files[0].stdout_log);
  const std::string before = content(job.files[0].stdout_log + ".1");
  CHECK(before.size() == 96);  // twelve whole lines of eight bytes
  CHECK(last.size() <= 100);
  CHECK((before + last).ends_with("line 48\nline 49\n"));
  CHECK(before.starts_with("line "));
  CHECK(last.starts_with("line "));
}

TEST_CASE("a log file that fails is told and does not end the job", "[process][output]") {
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.tee = "1";
  job.options.log_max_bytes = 5;
  job.while_running = [](Output&, AttemptOutput& attempt) {
    fs::create_directories(attempt.files(LocalRank{0}).stdout_log + ".1/in the way");  // no rotation is possible
  };
  job.commands = {"sleep 0.1; echo 1234; echo shown; echo on"};
  job.run();
  CHECK(job.out == "[default0]:1234\n[default0]:shown\n[default0]:on\n");
  CHECK(content(job.files[0].stdout_log) == "1234\n");
  const auto failed = only<event::LogWriteFailed>(job.told);
  REQUIRE_FALSE(failed.empty());
  CHECK(failed.back().path == job.files[0].stdout_log);
  CHECK(failed.back().bytes_lost == 9);
  CHECK(job.loss.log_bytes == 9);
}

namespace {

/// A disk thread, and what its files tell.
struct Disk {
  asio::io_context loop{1};
  DiskThread thread{loop};
  std::vector<LogFile::Failure> told;

  LogFile::Listener listener() {
    return [this](LogFile::Failure failure) { told.push_back(std::move(failure)); };
  }
  void settle() {
    spawn(loop, "settle", [](DiskThread& disk) -> Task<> { REQUIRE(co_await disk.idle(10s)); }(thread));
    loop.restart();
    loop.run();
  }
};

}  // namespace

TEST_CASE("a log file that cannot be written is told with path, cause and bytes lost", "[process][output]") {
  TemporaryDirectory scratch;
  Disk disk;
  const auto full = LogFile::appended(disk.thread, "/dev/full", disk.listener());
  const auto fine = LogFile::appended(disk.thread, scratch.path / "fine", disk.listener());
  for (int line = 0; line < 10; ++line) {
    full->write("lost\n");
    fine->write("kept\n");
  }
  full->report_losses();
  disk.settle();
  REQUIRE(disk.told.size() == 2);  // at once, and the sum at the end; not ten times
  CHECK(disk.told[0].path == "/dev/full");
  CHECK(disk.told[0].reason == "No space left on device");
  CHECK(disk.told[0].bytes_lost == 5);
  CHECK(disk.told[1].bytes_lost == 50);
  CHECK(content(scratch.path / "fine").size() == 50);
}

TEST_CASE("a log file that somebody deletes is told, and made anew", "[process][output]") {
  TemporaryDirectory scratch;
  Disk disk;
  const std::string path = scratch.path / "log";
  const auto file = LogFile::appended(disk.thread, path, disk.listener());
  file->write("first\n");
  disk.settle();
  fs::remove(path);
  file->write("lost\n");
  file->report_losses();
  disk.settle();
  REQUIRE(disk.told.size() == 1);
  CHECK(disk.told[0].path == path);
  CHECK(disk.told[0].reason == "somebody has deleted it");
  CHECK(disk.told[0].bytes_lost == 11);  // nobody can tell what was read before
  file->write("kept\n");
  file->report_losses();
  disk.settle();
  CHECK(content(path) == "kept\n");
  CHECK(disk.told.size() == 1);
}

TEST_CASE("a log directory that is deleted ends neither the attempt nor the next", "[process][output]") {
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.tee = "1";
  job.attempts = 2;
  job.while_running = [&](Output& output, AttemptOutput& attempt) {
    if (attempt.directory().ends_with("attempt_0")) fs::remove_all(fs::path{output.run_directory()}.parent_path());
  };
  job.commands = {"sleep 0.1; echo line"};
  job.run();
  CHECK(job.out == "[default0]:line\n[default0]:line\n");
  CHECK(job.loss.log_bytes == 5);  // of the first attempt; the second has a directory again
  CHECK(content(job.files[0].stdout_log) == "line\n");
  CHECK((fs::status(job.run_directory).permissions() & fs::perms::all) == fs::perms::owner_all);
}

TEST_CASE("a log directory that cannot be written any more ends no later attempt", "[process][output]") {
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.redirects = "1";
  job.attempts = 2;
  job.between_attempts = [&](Output& output) {
    // A file in the place of the run directory: nothing can be made in it, whoever we are.
    fs::remove_all(output.run_directory());
    std::ofstream{output.run_directory()} << "in the way";
  };
  job.commands = {"echo line"};
  job.run();
  REQUIRE_FALSE(only<event::Warning>(job.told).empty());
  CHECK(only<event::Warning>(job.told)[0].text.starts_with("no logs and no error files of this attempt: "));
  CHECK(job.files[0].error_file.empty());
  CHECK(job.loss.log_bytes == 5);
}

TEST_CASE("log files are ours alone", "[process][output]") {
  const auto before = ::umask(0);
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.redirects = "1";
  job.commands = {"echo line"};
  job.run();
  ::umask(before);
  const auto mode = [](const fs::path& path) { return fs::status(path).permissions() & fs::perms::all; };
  CHECK(mode(job.files[0].stdout_log) == (fs::perms::owner_read | fs::perms::owner_write));
  for (fs::path path = job.files[0].directory; path != job.log_dir(); path = path.parent_path())
    CHECK(mode(path) == fs::perms::owner_all);
}

TEST_CASE("a reader of events that stalls stops nothing", "[process][output]") {
  Job job;
  const std::string fifo = job.scratch.path / "events";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const UniqueFd reader{::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  job.options.log_dir = job.log_dir();
  job.options.tee = "1";
  job.attempts = 2;
  std::size_t appended = 0;
  job.while_running = [&](Output& output, AttemptOutput&) {
    const std::string line = std::string(999, 'e') + "\n";
    for (; appended < 3'000'000; appended += line.size()) output.append(fifo, line);
  };
  job.commands = {"yes | head -n 200000"};  // more than any queue holds
  job.run();
  CHECK(job.out.size() == 2 * 200'000 * std::string{"[default0]:y\n"}.size());
  const auto failed = only<event::LogWriteFailed>(job.told);
  REQUIRE_FALSE(failed.empty());
  CHECK(failed[0].path == fifo);
  CHECK(failed[0].reason == "its reader does not keep up");
  // All but what the pipe holds is lost, and known to be.
  CHECK(job.loss.log_bytes >= appended - appended_bytes_max);
  CHECK(job.loss.log_bytes <= appended);
}

TEST_CASE("a reader of our stdout that goes away does not end the job", "[process][output]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  UniqueFd read_end{ends[0]};
  UniqueFd write_end{ends[1]};
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  Job job;
  UniqueFd err_file = create(job.scratch.path / "err");
  job.commands = {"yes 2>/dev/null | head -c 3000000 2>/dev/null; echo done >&2"};
  job.while_running = [&](Output&, AttemptOutput&) { read_end.reset(); };
  job.run_on(write_end.get(), err_file.get());
  ::signal(SIGPIPE, before);
  CHECK(content(job.scratch.path / "err") == "done\n");
  const auto lost = only<event::ConsoleLost>(job.told);
  REQUIRE(lost.size() == 2);  // at once, and the sum at the end
  CHECK(lost[0].stream == "stdout");
  CHECK(lost[0].reason == "Broken pipe");
  CHECK(lost[1].bytes_lost == job.loss.console_bytes);
  CHECK(job.loss.console_bytes > 2'000'000);
}

TEST_CASE("a reader of our stdout that stops makes workers wait", "[process][output]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  UniqueFd read_end{ends[0]};
  UniqueFd write_end{ends[1]};
  Job job;
  UniqueFd err_file = create(job.scratch.path / "err");
  // The worker says how far it has come; it may come as far as the queues hold, and no further while nobody reads.
  const fs::path progress = job.scratch.path / "progress";
  constexpr std::size_t piece = 10'000;
  constexpr std::size_t pieces = 500;
  job.commands = {"i=0; while [ $i -lt " + std::to_string(pieces) + " ]; do head -c " + std::to_string(piece) +
                  " /dev/zero; i=$((i+1)); echo $i > " + progress.string() + ".new; mv " + progress.string() + ".new " +
                  progress.string() + "; done"};
  const auto written = [&] { return piece * static_cast<std::size_t>(std::atoi(content(progress).c_str())); };
  std::size_t stood_at = 0;
  std::size_t total = 0;
  std::thread reader{[&] {
    // Nothing is read until the worker has stood still for a while.
    for (int still = 0; still < 50;) {
      std::this_thread::sleep_for(10ms);
      const std::size_t now = written();
      still = now != 0 && now == stood_at ? still + 1 : 0;
      stood_at = now;
    }
    std::vector<char> buffer(1 << 20);
    while (total < piece * pieces) {
      const ssize_t count = ::read(read_end.get(), buffer.data(), buffer.size());
      if (count <= 0) break;
      total += static_cast<std::size_t>(count);
    }
  }};
  job.run_on(write_end.get(), err_file.get());
  write_end.reset();
  reader.join();
  CHECK(stood_at <= 3 * queue_bytes_max);  // the queue, one read more, and two pipes
  CHECK(total == piece * pieces);
  CHECK(job.loss.console_bytes == 0);
}

TEST_CASE("the end of the output waits for a reader, until it is told to hurry", "[process][output]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  UniqueFd read_end{ends[0]};
  UniqueFd write_end{ends[1]};
  constexpr std::size_t size = 200'000;  // more than the pipe holds, less than a queue
  Job job;
  UniqueFd err_file = create(job.scratch.path / "err");
  job.commands = {"head -c " + std::to_string(size) + " /dev/zero"};
  std::size_t total = 0;
  SECTION("as long as it takes") {
    job.patience = Output::Patience::as_cat;
    std::thread reader{[&] {
      std::this_thread::sleep_for(6s);  // longer than the limit for everything else
      std::vector<char> buffer(1 << 20);
      for (ssize_t count = 0; (count = ::read(read_end.get(), buffer.data(), buffer.size())) > 0;)
        total += static_cast<std::size_t>(count);
    }};
    job.run_on(write_end.get(), err_file.get());
    write_end.reset();
    reader.join();
    CHECK(total == size);
    CHECK(job.loss.console_bytes == 0);
  }
  SECTION("until hurry, however early it was said") {
    job.patience = Output::Patience::as_cat;
    job.between_attempts = [](Output& output) { output.hurry(); };
    job.run_on(write_end.get(), err_file.get());
    CHECK(job.loss.console_bytes > 0);
  }
  SECTION("or to the limit") {
    job.run_on(write_end.get(), err_file.get());
    CHECK(job.loss.console_bytes > 0);
    const auto lost = only<event::ConsoleLost>(job.told);
    REQUIRE(lost.size() == 1);
    CHECK(lost[0].reason == "nobody reads it");
  }
  read_end.reset();  // ends the writer's thread
}

TEST_CASE("on a terminal a worker has a terminal", "[process][output]") {
  auto screen = open_pty(-1);
  REQUIRE(screen.has_value());
  Job job;
  job.commands = {"test -t 1 && echo yes; test -t 2 || echo no; stty size <&1"};
  UniqueFd err_file = create(job.scratch.path / "err");
  winsize size{};
  size.ws_row = 17;
  size.ws_col = 42;
  REQUIRE(::ioctl(screen->master.get(), TIOCSWINSZ, &size) == 0);
  job.run_on(screen->slave.get(), err_file.get());
  std::array<char, 1000> buffer{};
  const ssize_t count = ::read(screen->master.get(), buffer.data(), buffer.size());
  REQUIRE(count > 0);
  CHECK(std::string(buffer.data(), static_cast<std::size_t>(count)) == "yes\nno\n17 42\n");
}

TEST_CASE("on a terminal teed lines name host and rank", "[process][output]") {
  auto screen = open_pty(-1);
  REQUIRE(screen.has_value());
  Job job;
  job.options.log_dir = job.log_dir();
  job.options.tee = "1";
  job.commands = {"test -t 1 || echo pipe"};
  UniqueFd err_file = create(job.scratch.path / "err");
  ::setenv("NO_COLOR", "1", 1);
  job.run_on(screen->slave.get(), err_file.get());
  ::unsetenv("NO_COLOR");
  std::array<char, 1000> buffer{};
  const ssize_t count = ::read(screen->master.get(), buffer.data(), buffer.size());
  REQUIRE(count > 0);
  CHECK(std::string(buffer.data(), static_cast<std::size_t>(count)) == "[vm:0] pipe\n");
}

TEST_CASE("a terminal that stands still drops lines, counts and says them", "[process][output]") {
  auto screen = open_pty(-1);
  REQUIRE(screen.has_value());
  Job job;
  const fs::path written = job.scratch.path / "written";
  constexpr std::size_t size = 30'000'000;
  job.commands = {"yes | head -c " + std::to_string(size) + "; touch " + written.string() + "; until test -e " +
                      written.string() + ".read; do sleep 0.01; done; echo after",
                  "true"};
  UniqueFd err_file = create(job.scratch.path / "err");
  std::thread reader;
  std::string text;
  std::atomic<bool> over = false;
  bool in_time = false;
  job.while_running = [&](Output&, AttemptOutput&) {
    reader = std::thread{[&] {
      // Ctrl-S, and the worker is not stopped by it: it writes all before anything is read.
      for (int wait = 0; wait < 2000 && !fs::exists(written); ++wait) std::this_thread::sleep_for(5ms);
      in_time = fs::exists(written);
      std::array<char, 65536> buffer{};
      bool said = false;
      for (bool last = false; !last;) {
        last = over;
        for (ssize_t count = 0; (count = ::read(screen->master.get(), buffer.data(), buffer.size())) > 0;)
          text.append(buffer.data(), static_cast<std::size_t>(count));
        if (!std::exchange(said, true)) std::ofstream{written.string() + ".read"};
        std::this_thread::sleep_for(1ms);
      }
    }};
  };
  job.run_on(screen->slave.get(), err_file.get());
  over = true;
  reader.join();
  CHECK(in_time);
  // What is kept for a terminal, and what passed before it stood still; the rest is lost, and the terminal hears it.
  CHECK(job.loss.console_bytes > size - terminal_bytes_max - 2'000'000);
  CHECK(job.loss.console_bytes < size);
  const std::string note = "torchup: this terminal does not keep up: " + std::to_string(job.loss.console_bytes) +
                           " bytes of output are not shown\n";
  INFO(text.substr(text.size() - std::min<std::size_t>(text.size(), 200)));
  CHECK(text.find(note) != std::string::npos);
  CHECK(text.ends_with("after\n"));
}

TEST_CASE("a worker hears that the terminal has another size", "[process][output]") {
  auto screen = open_pty(-1);
  REQUIRE(screen.has_value());
  Job job;
  const fs::path ready = job.scratch.path / "ready";
  winsize size{};
  size.ws_row = 33;
  size.ws_col = 77;
  job.commands = {"touch " + ready.string() +
                  "; exec 3>&1; until test \"$(stty size <&3)\" = '33 77'; do sleep 0.01; done"};
  UniqueFd err_file = create(job.scratch.path / "err");
  job.while_running = [&](Output& output, AttemptOutput&) {
    ::ioctl(screen->master.get(), TIOCSWINSZ, &size);
    output.window_changed();
  };
  job.run_on(screen->slave.get(), err_file.get());  // ends only if it does
}

TEST_CASE("without capture workers write to our own streams", "[process][output]") {
  Job job;
  job.options.capture = false;
  job.options.redirects = "1:1";
  job.options.log_dir = job.log_dir();
  job.commands = {"readlink /proc/self/fd/1", "readlink /proc/self/fd/1"};
  job.run();
  CHECK(job.out == (job.scratch.path / "out").string() + "\n");
  CHECK(content(job.files[1].stdout_log).starts_with("pipe:"));
}

TEST_CASE("with the null device as log directory there are no files", "[process][output]") {
  Job job;
  job.options.log_dir = "/dev/null";
  job.options.tee = "3";
  job.commands = {"echo a"};
  job.run();
  CHECK(job.out == "a\n");
  CHECK(job.run_directory.empty());
  CHECK(job.files[0].error_file.empty());
}

TEST_CASE("a log directory that is a file is an error", "[process][output]") {
  TemporaryDirectory scratch;
  std::ofstream{scratch.path / "f"} << "x";
  OutputOptions options;
  options.log_dir = scratch.path / "f";
  auto plan = make_output_plan(options, 1, "default", "vm", "run");
  REQUIRE(plan.has_value());
  asio::io_context loop{1};
  Output output{loop, *plan, [](EventBody) {}};
  std::string message;
  spawn(loop, "begin", [](Output& started, std::string& said) -> Task<> {
    auto begun = co_await started.begin_attempt("attempt_0", Rank{0});
    if (!begun) said = begun.error().context;
  }(output, message));
  loop.run();
  CHECK(message == "log_dir: " + options.log_dir + " is a file");
}

TEST_CASE("a TMPDIR that names no directory is passed over, as by Python", "[process][output]") {
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before != nullptr ? before : "";
  Job job;
  ::setenv("TMPDIR", "/nonexistent", 1);
  job.commands = {"echo a > $ERROR_FILE; echo a"};
  job.while_running = [](Output&, AttemptOutput& attempt) {
    std::ofstream{attempt.files(LocalRank{0}).error_file} << "{}";
  };
  job.run();
  before != nullptr ? ::setenv("TMPDIR", kept.c_str(), 1) : ::unsetenv("TMPDIR");
  CHECK(job.out == "a\n");
  CHECK(job.files[0].error_file.starts_with("/tmp/torchelastic_"));
  CHECK(content(job.files[0].error_file) == "{}");
  CHECK(job.told.empty());
  fs::remove_all(fs::path{job.run_directory}.parent_path());
}

TEST_CASE("what launchers that are gone have left in memory is cleared away", "[process][output]") {
  TemporaryDirectory scratch;
  const std::string link = scratch.path / "torchelastic_abcdefgh";
  const std::string own = memory_name(link);
  CHECK(own.starts_with("torchelastic_"));
  CHECK(own.ends_with("_abcdefgh"));
  CHECK_FALSE(launcher_is_gone(own));
  CHECK_FALSE(launcher_is_gone("torchelastic_abcdefgh"));
  CHECK_FALSE(launcher_is_gone("torchelastic_00000000_1_2_abcdefgh"));  // of another machine or container
  const auto second = own.find('_', own.find('_') + 1);
  const auto third = own.find('_', second + 1);
  const std::string mine = own.substr(0, second);                                      // prefix and place
  const std::string started = own.substr(third, own.rfind("_abcdefgh") - third);       // start time
  CHECK(launcher_is_gone(mine + own.substr(second, third - second) + "_1_abcdefgh"));  // our number, another start
  const std::string gone = mine + "_99999999" + started + "_abcdefgh";
  REQUIRE(launcher_is_gone(gone));

  const fs::path in_memory = fs::path{"/dev/shm"} / gone;
  const fs::path living = fs::path{"/dev/shm"} / own;
  fs::create_directories(in_memory / "none_12345678/attempt_0/1");
  fs::create_directories(living);
  fs::create_symlink(in_memory, link);
  const std::string dangling = scratch.path / "torchelastic_ABCDEFGH";
  fs::create_symlink(in_memory.string() + "x", dangling);
  const bool has_words = GENERATE(false, true);
  std::ofstream{in_memory / "none_12345678/attempt_0/1/error.json"} << (has_words ? "{}" : "");
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before != nullptr ? before : "";
  ::setenv("TMPDIR", scratch.path.c_str(), 1);
  remove_left_behind(scratch.path / "torchelastic_12345678");
  before != nullptr ? ::setenv("TMPDIR", kept.c_str(), 1) : ::unsetenv("TMPDIR");
  CHECK_FALSE(fs::exists(in_memory));
  CHECK(fs::exists(living));
  CHECK_FALSE(fs::is_symlink(link));
  CHECK_FALSE(fs::is_symlink(dangling));
  CHECK(fs::exists(link + "/none_12345678/attempt_0/1/error.json") == has_words);  // as its launcher would have left it
  fs::remove_all(living);
  fs::remove_all(in_memory);
}

TEST_CASE("what somebody lays in a shared folder is not followed", "[process][output]") {
  TemporaryDirectory scratch;
  const fs::path target = scratch.path / "target";
  std::ofstream{target} << "precious";
  SECTION("a name beside the result") {
    // All names that a process id could give.
    const fs::path result = scratch.path / "result";
    fs::create_symlink(target, result.string() + ".tmp" + std::to_string(::getpid()));
    REQUIRE(replace_file_now(result, "new").has_value());
    CHECK(content(result) == "new");
  }
  SECTION("the result's own name") {
    fs::create_symlink(target, scratch.path / "result");
    REQUIRE(replace_file_now(scratch.path / "result", "new").has_value());
    CHECK(content(scratch.path / "result") == "new");
    CHECK_FALSE(fs::is_symlink(scratch.path / "result"));
  }
  SECTION("a link of another user, to a device or a file") {
    if (::geteuid() != 0) return;
    fs::permissions(scratch.path, fs::perms::all | fs::perms::sticky_bit);
    const fs::path link = scratch.path / "link";
    fs::create_symlink(target, link);
    REQUIRE(::lchown(link.c_str(), 65534, 65534) == 0);
    CHECK(open_named_file(link, O_APPEND, 0600).error().code == make_error_code(errc::refused));
    fs::remove(link);
    fs::create_symlink("/dev/full", link);
    REQUIRE(::lchown(link.c_str(), 65534, 65534) == 0);
    REQUIRE(replace_file_now(link, "new").has_value());  // the link goes, the device is not touched
    CHECK_FALSE(fs::is_symlink(link));
  }
  SECTION("a new file is new") {
    const UniqueFd folder{::open(scratch.path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)};
    fs::create_symlink(target, scratch.path / "log");
    CHECK_FALSE(create_new_file(folder.get(), "log", 0600).has_value());
    CHECK_FALSE(create_new_file(folder.get(), "target", 0600).has_value());
    CHECK(create_new_file(folder.get(), "fresh", 0600).has_value());
  }
  CHECK(content(target) == "precious");
}

TEST_CASE("a file is replaced as a whole", "[process][output]") {
  TemporaryDirectory scratch;
  const std::string path = scratch.path / "result.json";
  REQUIRE(replace_file_now(path, "first").has_value());
  const UniqueFd reader{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  REQUIRE(replace_file_now(path, "second and longer").has_value());
  std::array<char, 100> buffer{};
  CHECK(::read(reader.get(), buffer.data(), buffer.size()) == 5);  // who had opened it sees all of the old one
  CHECK(content(path) == "second and longer");
  CHECK(std::distance(fs::directory_iterator{scratch.path}, {}) == 1);
  CHECK_FALSE(replace_file_now((scratch.path / "no/dir").string(), "x").has_value());
  CHECK(replace_file_now("/dev/null", "x").has_value());
}

TEST_CASE("what the launcher says comes whole, after what workers have said", "[process][output]") {
  Job job;
  job.commands = {"printf open >&2; sleep 0.1"};
  job.while_running = [](Output& output, AttemptOutput&) { output.print("launcher\n"); };
  job.run();
  CHECK((job.err == "launcher\nopen" || job.err == "open\nlauncher\n"));
}
