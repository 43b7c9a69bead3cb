// What stands on our own stdout and stderr, and in which order; and readers who leave, stall or stop.

#include <sys/ioctl.h>

#include <atomic>
#include <thread>

#include "launcher/os/io/pty.hpp"
#include "tests/support/output_job.hpp"

using namespace torchup;
using namespace torchup::output_test;
using namespace std::chrono_literals;

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
  CHECK(std::chrono::steady_clock::now() - begin < 100s);
  CHECK(job.out.ends_with("\nlast"));
  ::kill(std::stoi(job.out), SIGKILL);
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
  const auto run_beside_a_late_reader = [&] {
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
  };
  SECTION("as long as it takes") {
    run_beside_a_late_reader();
    CHECK(total == size);
    CHECK(job.loss.console_bytes == 0);
  }
  SECTION("also for what a worker's child wrote when nothing more could be shown") {
    job.commands = {"head -c 350000 /dev/zero; (sleep 0.7; head -c 60000 /dev/zero) &"};
    run_beside_a_late_reader();
    CHECK(total == 410'000);
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

namespace {

/// All that was written to it: the kernel may pass it on in pieces.
std::string shown_on(const Pty& screen) {
  std::string text;
  std::array<char, 1000> buffer{};
  for (ssize_t count = 0; (count = ::read(screen.master.get(), buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(count));
  return text;
}

}  // namespace

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
  CHECK(shown_on(*screen) == "yes\nno\n17 42\n");
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
  CHECK(shown_on(*screen) == "[vm:0] pipe\n");
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
        // There is room for more once most of what was kept has been read.
        if (!said && (said = text.size() >= terminal_bytes_max)) std::ofstream{written.string() + ".read"};
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

TEST_CASE("what the launcher says comes whole, after what workers have said", "[process][output]") {
  Job job;
  job.commands = {"printf open >&2; sleep 0.1"};
  job.while_running = [](Output& output, AttemptOutput&) { output.print("launcher\n"); };
  job.run();
  CHECK((job.err == "launcher\nopen" || job.err == "open\nlauncher\n"));
}
