#include "rendezvous/net/io/log.hpp"

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <vector>

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

}  // namespace

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
  options.limits = {.window = 20ms, .lines_max = 1};
  boost::asio::io_context loop;
  Log log{std::move(options)};
  const Log::LoopUse use = log.use(loop);
  for (int i = 0; i < 100; ++i) log.tell({"again"});
  REQUIRE(written.lines.size() == 1);
  loop.run_for(10s);  // returns when nothing is due any more
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
