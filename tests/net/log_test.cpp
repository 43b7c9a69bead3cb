#include "rendezvous/net/io/log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "rendezvous/net/io/unique_fd.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

struct Written {
  std::vector<std::string> lines;
  LogOptions options() {
    return {.program = "torchupd", .write = [this](std::string line) { lines.push_back(std::move(line)); }};
  }
};

LogLine about(const std::string& job, const std::string& text) {
  LogLine line{text};
  line.job = job;
  return line;
}

/// A log whose lines go to a small pipe in place of stderr.
struct PipedLog {
  PipedLog() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    reader.reset(ends[0]);
    const UniqueFd writer{ends[1]}, real{::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)};
    REQUIRE(::fcntl(writer.get(), F_SETPIPE_SZ, 4096) == 4096);
    ::dup2(writer.get(), STDERR_FILENO);
    log.emplace(
        LogOptions{.program = "torchupd", .limits = {.messages_max = lines_told + 2, .all_lines_max = lines_told + 1}});
    ::dup2(real.get(), STDERR_FILENO);
  }
  static constexpr std::size_t lines_told = 20'000;
  static std::string line(std::size_t i) { return std::to_string(i) + std::string(90, 'x'); }
  UniqueFd reader;
  std::optional<Log> log;
};

}  // namespace

TEST_CASE("lines that nobody reads hold up nobody, and are lost beyond the limit and counted", "[net][log]") {
  PipedLog piped;
  for (std::size_t i = 0; i < PipedLog::lines_told; ++i) piped.log->tell({LogLevel::info, "", PipedLog::line(i)});
  std::string read;
  std::thread reader{[&] {
    std::array<char, 4096> piece{};
    for (ssize_t count = 0; (count = ::read(piped.reader.get(), piece.data(), piece.size())) > 0;)
      read.append(piece.data(), static_cast<std::size_t>(count));
  }};
  piped.log.reset();
  reader.join();
  std::size_t whole = 0, begin = 0;
  for (std::size_t end = 0; (end = read.find('\n', begin)) != std::string::npos; begin = end + 1, ++whole) {
    const std::string line = read.substr(begin, end - begin);
    if (line != "torchupd: " + PipedLog::line(whole)) break;
  }
  CHECK(begin >= unwritten_log_bytes_max);
  CHECK(begin < unwritten_log_bytes_max + (std::size_t{64} << 10));
  CHECK(read.substr(begin) ==
        fmt::format("torchupd: {} lines are lost: nobody read those before them\n", PipedLog::lines_told - whole));
}

TEST_CASE("an end waits for the reader of its last lines so long and no longer", "[net][log]") {
  PipedLog piped;
  for (std::size_t i = 0; i < 100; ++i) piped.log->tell({LogLevel::info, "", PipedLog::line(i)});
  const auto begin = std::chrono::steady_clock::now();
  piped.log.reset();
  const auto took = std::chrono::steady_clock::now() - begin;
  CHECK(took >= last_lines_limit);
  CHECK(took < last_lines_limit + 5s);
}

TEST_CASE("a line has the program and the job in front, and is one line whoever wrote it", "[net][log]") {
  Written written;
  Log log{written.options()};
  log.tell({"ready"});
  log.tell(about("a1", "node n0 left: \x1b[2Jbye\ntorchupd: job a1: the job ends with 0"));
  log.tell(about("x\ntorchupd: forged", "joined"));
  REQUIRE(written.lines == std::vector<std::string>{
                               "torchupd: ready\n",
                               "torchupd: job a1: node n0 left: \\x1b[2Jbye\\ntorchupd: job a1: the job ends with 0\n",
                               "torchupd: job x\\ntorchupd: forged: joined\n"});
}

TEST_CASE("a line of any length is cut at the limit", "[net][log]") {
  Written written;
  LogOptions options = written.options();
  options.limits.line_bytes_max = 100;
  Log log{std::move(options)};
  log.tell({std::string(100, 'x')});
  log.tell({std::string(101, 'y')});
  REQUIRE(written.lines[0] == "torchupd: " + std::string(100, 'x') + "\n");
  REQUIRE(written.lines[1] == "torchupd: " + std::string(100, 'y') + "… (101 bytes)\n");
}

TEST_CASE("json: one object in a line, whatever stands in it", "[net][log]") {
  Written written;
  LogOptions options = written.options();
  options.format = LogFormat::json;
  Log log{std::move(options)};
  LogLine line{LogLevel::warning, "closed", "said \"\\\" and \x01\xff"};
  line.job = "a\"1";
  log.tell(std::move(line).because_of("fd00::1"));
  REQUIRE(written.lines.size() == 1);
  const std::string& object = written.lines.front();
  REQUIRE(object.starts_with("{\"time\":\"20"));
  REQUIRE(object.substr(std::string_view{"{\"time\":\"2026-11-22T07:12:25.123456Z"}.size()) ==
          "\",\"level\":\"warning\",\"program\":\"torchupd\",\"job\":\"a\\\"1\",\"peer\":\"fd00::1\","
          "\"message\":\"said \\\"\\\\\\\" and \\\\x01\\\\xff\"}\n");
}

TEST_CASE("what is less important than the level is not written, and not counted", "[net][log]") {
  Written written;
  LogOptions options = written.options();
  options.level = LogLevel::warning;
  {
    Log log{std::move(options)};
    for (int i = 0; i < 100; ++i) log.tell({LogLevel::info, "hello"});
    log.tell({LogLevel::error, "no"});
  }
  REQUIRE(written.lines == std::vector<std::string>{"torchupd: no\n"});
}

TEST_CASE("the loop writes a count that no line follows", "[net][log]") {
  Written written;
  LogOptions options = written.options();
  options.limits = {.window = 1s, .lines_max = 1};
  boost::asio::io_context loop;
  Log log{std::move(options)};
  const Log::LoopUse use = log.use(loop);
  for (int i = 0; i < 100; ++i) log.tell({"again"});
  REQUIRE(written.lines.size() == 1);
  loop.run_for(60s);  // returns when nothing is due any more
  REQUIRE(written.lines.size() == 2);
  REQUIRE(written.lines[1].starts_with("torchupd: … 99 more like this in the last"));
}

TEST_CASE("an end writes the counts, and a loop may go before the log", "[net][log]") {
  Written written;
  LogOptions options = written.options();
  options.limits.lines_max = 1;
  {
    Log log{std::move(options)};
    boost::asio::io_context loop;
    const Log::LoopUse use = log.use(loop);
    log.tell({"again"});
    log.tell({"again"});
    REQUIRE(written.lines.size() == 1);
  }
  REQUIRE(written.lines.size() == 2);
}

TEST_CASE("words for levels and formats", "[net][log]") {
  REQUIRE(*read_log_level("warning") == LogLevel::warning);
  REQUIRE(*read_log_format("json") == LogFormat::json);
  REQUIRE(read_log_level("loud").error().message() == "\"loud\" is no level of the log: debug, info, warning or error");
  REQUIRE(read_log_format("").error().code == errc::bad_value);
}
