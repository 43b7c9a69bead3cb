// Log files and folders, and disks that fail; all of it, so a little longer than 400 lines.

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <future>

#include "launcher/os/io/named_file.hpp"
#include "launcher/os/output/run_directory.hpp"
#include "rendezvous/net/io/writer_thread.hpp"
#include "tests/support/output_job.hpp"

using namespace torchup;
using namespace torchup::output_test;
using namespace std::chrono_literals;

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
    spawn(loop, "settle", [](DiskThread& disk) -> Task<> {
      const bool idle = co_await disk.idle(10s);
      REQUIRE(idle);
    }(thread));
    loop.restart();
    loop.run();
  }
};

}  // namespace

TEST_CASE("a dead disk takes its limit once at the end, whatever it is asked", "[process][output]") {
  test::TemporaryFolder scratch;
  Disk disk;
  std::promise<void> alive;
  disk.thread.call([answer = alive.get_future().share()] { answer.wait(); });
  const TimePoint begin = std::chrono::steady_clock::now();
  disk.thread.answer_by(begin + 200ms);
  int unanswered = 0;
  spawn(disk.loop, "end", [](DiskThread& thread, std::string path, int& count) -> Task<> {
    for (int question = 0; question < 10; ++question) {
      const std::function<int()> work = [] { return 1; };
      if (!co_await thread.ask(work)) ++count;
    }
    const auto replaced = co_await thread.replace_file(path, "");
    if (!replaced) ++count;
  }(disk.thread, scratch.path / "late", unanswered));
  disk.loop.run();
  CHECK(unanswered == 11);
  CHECK(std::chrono::steady_clock::now() - begin < disk_limit);
  alive.set_value();
  disk.settle();
}

TEST_CASE("a log file that cannot be written is told with path, cause and bytes lost", "[process][output]") {
  test::TemporaryFolder scratch;
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
  test::TemporaryFolder scratch;
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
  // The second attempt's line; the first's too where its file was still open when its directory went.
  CHECK((job.loss.log_bytes == 5 || job.loss.log_bytes == 10));
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

TEST_CASE("an event longer than all that may wait is written all the same", "[process][output]") {
  Job job;
  job.options.log_dir = job.log_dir();
  const std::string events = job.scratch.path / "events";
  const std::string line = std::string(2 * appended_bytes_max, 'e') + "\n";
  job.while_running = [&](Output& output, AttemptOutput&) { output.append(events, line); };
  job.commands = {"true"};
  job.run();
  CHECK(content(events) == line);
  CHECK(only<event::LogWriteFailed>(job.told).empty());
}

TEST_CASE("a log directory that is a file is an error", "[process][output]") {
  test::TemporaryFolder scratch;
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
  test::TemporaryFolder scratch;
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
  fs::create_directories(in_memory / "hook/__pycache__");
  std::ofstream{in_memory / "hook/__pycache__/a.pyc"} << "bytecode";
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before != nullptr ? before : "";
  ::setenv("TMPDIR", scratch.path.c_str(), 1);
  remove_left_behind(scratch.path / "torchelastic_12345678");
  before != nullptr ? ::setenv("TMPDIR", kept.c_str(), 1) : ::unsetenv("TMPDIR");
  CHECK_FALSE(fs::exists(in_memory));
  CHECK(fs::exists(living));
  CHECK_FALSE(fs::is_symlink(link));
  CHECK_FALSE(fs::is_symlink(dangling));
  CHECK_FALSE(fs::exists(link + "/hook"));
  CHECK(fs::exists(link + "/none_12345678/attempt_0/1/error.json") == has_words);  // as its launcher would have left it
  fs::remove_all(living);
  fs::remove_all(in_memory);
}

TEST_CASE("of a temporary folder with very many names so many are looked at", "[process][output]") {
  test::TemporaryFolder scratch;
  const std::string own = memory_name(scratch.path / "torchelastic_abcdefgh");
  const auto third = own.find('_', own.find('_', own.find('_') + 1) + 1);
  // Of a process that has our number and is gone.
  const fs::path gone = fs::path{"/dev/shm"} / (own.substr(0, third) + "_1_abcdefgh");
  constexpr int more = 100;
  for (int i = 0; i < names_looked_at_max + more; ++i)
    fs::create_symlink(gone, scratch.path / ("torchelastic_" + std::to_string(10'000'000 + i)));
  const auto left = [&] { return std::distance(fs::directory_iterator{scratch.path}, fs::directory_iterator{}); };
  remove_left_behind(scratch.path / "torchelastic_12345678");
  CHECK(left() >= more);
  CHECK(left() < more + 10);
  remove_left_behind(scratch.path / "torchelastic_12345678");
  CHECK(left() == 0);
}

TEST_CASE("a file that is overwritten stays the file that it is", "[process][output]") {
  test::TemporaryFolder scratch;
  const fs::path mounted = scratch.path / "mounted";
  REQUIRE(overwrite_file_now(mounted, "a long message").has_value());
  fs::create_hard_link(mounted, scratch.path / "same");
  REQUIRE(overwrite_file_now(mounted, "short").has_value());
  CHECK(content(scratch.path / "same") == "short");
  CHECK(overwrite_file_now(scratch.path / "none/file", "x").error().code ==
        boost::system::errc::no_such_file_or_directory);
}

TEST_CASE("what somebody lays in a shared folder is not followed", "[process][output]") {
  test::TemporaryFolder scratch;
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
  SECTION("a link where the error files of a temporary directory are to go") {
    const fs::path in_memory = scratch.path / "memory", elsewhere = scratch.path / "elsewhere";
    const std::string link = scratch.path / "torchelastic_abcdefgh";
    fs::create_directory(in_memory);
    fs::create_directory(elsewhere);
    std::ofstream{in_memory / "error.json"} << "{}";
    fs::create_symlink(in_memory, link);
    fs::create_symlink(elsewhere, link + ".disk");
    remove_temporary({.path = "", .temporary = {link}, .in_memory = in_memory});
    CHECK(fs::is_empty(elsewhere));
    CHECK(content(link + "/error.json") == "{}");  // they stay where they are
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
  test::TemporaryFolder scratch;
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

TEST_CASE("where the system gives no thread, work is done all the same", "[process][output]") {
  if (::geteuid() != 0) return;  // the limit does not bind root, and only root can become nobody
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit none{0, 0};
    sigset_t before;
    sigset_t after;
    ::sigprocmask(SIG_BLOCK, nullptr, &before);
    bool done = false;
    if (::setrlimit(RLIMIT_NPROC, &none) != 0 || ::setuid(65534) != 0) ::_exit(2);
    WriterThread thread;
    thread.put([&done] { done = true; }, 1);
    ::sigprocmask(SIG_BLOCK, nullptr, &after);
    const bool same_signals = sigismember(&before, SIGTERM) == sigismember(&after, SIGTERM);
    ::_exit(done && same_signals && thread.queued_bytes() == 0 ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
