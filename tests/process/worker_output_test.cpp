#include "launcher/os/worker_output.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "launcher/os/console_writer.hpp"
#include "launcher/os/log_writer.hpp"
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
    }
    run_directory = output.run_directory();
    loss = co_await output.finish(5s);
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

TEST_CASE("a worker that is alone reads our stdin, several read nothing", "[process][output]") {
  TemporaryDirectory scratch;
  std::ofstream{scratch.path / "in"} << "typed\n";
  UniqueFd in{::open((scratch.path / "in").c_str(), O_RDONLY | O_CLOEXEC)};
  const Replaced new_in{STDIN_FILENO, in.get()};
  Job several;
  several.commands = {"cat", "cat"};
  several.run();
  CHECK(several.out.empty());
  Job alone;
  alone.commands = {"cat"};
  alone.run();
  CHECK(alone.out == "typed\n");
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

TEST_CASE("a log file that cannot be written is told with path, cause and bytes lost", "[process][output]") {
  TemporaryDirectory scratch;
  std::vector<LogWriter::Failure> told;
  {
    LogWriter writer{[&](LogWriter::Failure failure) { told.push_back(std::move(failure)); }};
    const auto full = LogWriter::appended_file("/dev/full");
    const auto fine = LogWriter::appended_file(scratch.path / "fine");
    for (int line = 0; line < 10; ++line) {
      writer.write(full, "lost\n");
      writer.write(fine, "kept\n");
    }
    writer.report_losses(full);
    bool written = false;
    writer.when_at_most(0, [&] { written = true; });
    for (int wait = 0; wait < 1000 && writer.queued_bytes() != 0; ++wait) std::this_thread::sleep_for(5ms);
    REQUIRE(writer.queued_bytes() == 0);
  }
  REQUIRE(told.size() == 2);  // at once, and the sum at the end; not ten times
  CHECK(told[0].path == "/dev/full");
  CHECK(told[0].reason == "No space left on device");
  CHECK(told[0].bytes_lost == 5);
  CHECK(told[1].bytes_lost == 50);
  CHECK(content(scratch.path / "fine").size() == 50);
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

TEST_CASE("a reader of our stdout that stops makes workers wait, and the end has a bound", "[process][output]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  UniqueFd read_end{ends[0]};
  UniqueFd write_end{ends[1]};
  Job job;
  UniqueFd err_file = create(job.scratch.path / "err");
  job.commands = {"yes | head -c 100000000"};
  std::size_t total = 0;
  std::thread reader{[&] {  // reads nothing for a while, then everything
    std::this_thread::sleep_for(300ms);
    std::vector<char> buffer(1 << 20);
    while (total < 100'000'000) {
      const ssize_t count = ::read(read_end.get(), buffer.data(), buffer.size());
      if (count <= 0) break;
      total += static_cast<std::size_t>(count);
    }
  }};
  job.run_on(write_end.get(), err_file.get());
  write_end.reset();
  reader.join();
  CHECK(total == 100'000'000);
  CHECK(job.loss.console_bytes == 0);
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
  job.commands = {"yes | head -c 30000000; touch " + written.string(), "true"};
  UniqueFd err_file = create(job.scratch.path / "err");
  std::thread reader;
  job.while_running = [&](Output&, AttemptOutput&) {
    reader = std::thread{[&] {
      // Ctrl-S, and the worker is not stopped by it.
      for (int wait = 0; wait < 2000 && !fs::exists(written); ++wait) std::this_thread::sleep_for(5ms);
      std::array<char, 65536> buffer{};
      for (int idle = 0; idle < 60;) {
        idle = ::read(screen->master.get(), buffer.data(), buffer.size()) > 0 ? 0 : idle + 1;
        if (idle > 0) std::this_thread::sleep_for(5ms);
      }
    }};
  };
  job.run_on(screen->slave.get(), err_file.get());
  reader.join();
  CHECK(job.loss.console_bytes > 1'000'000);
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

TEST_CASE("without a writable temporary directory the job has no error files, and hears why", "[process][output]") {
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before != nullptr ? before : "";
  Job job;
  ::setenv("TMPDIR", "/nonexistent", 1);
  job.commands = {"echo a"};
  job.run();
  before != nullptr ? ::setenv("TMPDIR", kept.c_str(), 1) : ::unsetenv("TMPDIR");
  CHECK(job.out == "a\n");
  CHECK(job.files[0].error_file.empty());
  CHECK(only<event::Warning>(job.told).size() == 1);
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
