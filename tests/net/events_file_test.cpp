#include "rendezvous/net/daemon/events_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

struct Written {
  explicit Written(std::string path) : path{std::move(path)} { std::signal(SIGPIPE, SIG_IGN); }

  Result<> open() {
    auto opened = EventsFile::open(loop, path, [this](const LogLine& line) { told.push_back(line); });
    if (!opened) return opened.error();
    file = std::move(*opened);
    return {};
  }
  bool until(const std::function<bool()>& condition) {
    for (int i = 0; i < 400 && !condition(); ++i) {
      loop.restart();
      loop.run_for(25ms);
    }
    return condition();
  }
  [[nodiscard]] std::string text() const {
    std::ifstream in{path};
    return {std::istreambuf_iterator<char>{in}, {}};
  }
  [[nodiscard]] bool said(std::size_t line, const std::string& part) const {
    return told.size() > line && told[line].text.find(part) != std::string::npos;
  }

  std::string path;
  boost::asio::io_context loop{};
  std::vector<LogLine> told{};
  std::unique_ptr<EventsFile> file{};
};

/// Whoever reads a FIFO; it takes what a pipe takes.
UniqueFd reader_of(const std::string& fifo) {
  return UniqueFd{::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
}

}  // namespace

TEST_CASE("events go behind those that are there, and all are written at the end", "[net][events_file]") {
  const test::TemporaryFolder folder;
  Written written{folder.path / "events"};
  std::ofstream{written.path} << "before\n";
  REQUIRE(written.open().has_value());
  std::string expected = "before\n";
  for (int number = 0; number < 1000; ++number) {
    const std::string line = "{\"seq\":" + std::to_string(number) + "}\n";
    written.file->write(line);
    expected += line;
  }
  written.file.reset();
  REQUIRE(written.text() == expected);
  REQUIRE(written.told.empty());
}

TEST_CASE("what cannot be opened is an error that names it, and is not waited for", "[net][events_file]") {
  const test::TemporaryFolder folder;
  REQUIRE(::mkfifo((folder.path / "fifo").c_str(), 0600) == 0);
  for (const auto& path : {folder.path / "none" / "events", folder.path, folder.path / "fifo"}) {
    Written written{path};
    const auto opened = written.open();
    REQUIRE(opened.has_error());
    REQUIRE(opened.error().message().find(path.string()) != std::string::npos);
  }
}

TEST_CASE("a disk that takes nothing is one warning, and at the end a number", "[net][events_file]") {
  Written written{"/dev/full"};
  REQUIRE(written.open().has_value());
  for (int number = 0; number < 3; ++number) written.file->write("{}\n");
  REQUIRE(written.until([&] { return !written.told.empty(); }));
  REQUIRE(written.told[0].level == LogLevel::warning);
  REQUIRE(written.said(0, "/dev/full: No space left"));
  for (int number = 0; number < 4; ++number) written.file->write("{}\n");
  written.file.reset();
  REQUIRE(written.told.size() == 2);
  REQUIRE(written.said(1, "7 events are lost"));
}

TEST_CASE("where it goes on, it is told how many are lost", "[net][events_file]") {
  const test::TemporaryFolder folder;
  Written written{folder.path / "fifo"};
  REQUIRE(::mkfifo(written.path.c_str(), 0600) == 0);
  UniqueFd reader = reader_of(written.path);
  REQUIRE(written.open().has_value());
  reader.reset();
  for (int number = 0; number < 2; ++number) written.file->write("{}\n");
  REQUIRE(written.until([&] { return written.said(0, "Broken pipe"); }));
  reader = reader_of(written.path);
  written.file->write("{}\n");
  REQUIRE(written.until([&] { return written.told.size() > 1; }));
  REQUIRE(written.said(1, "2 events are lost"));
  written.file->write("{}\n");
  written.file.reset();
  REQUIRE(written.told.size() == 2);
}

TEST_CASE("what a disk does not take in time waits, up to a limit", "[net][events_file]") {
  const test::TemporaryFolder folder;
  Written written{folder.path / "fifo"};
  REQUIRE(::mkfifo(written.path.c_str(), 0600) == 0);
  UniqueFd reader = reader_of(written.path);
  REQUIRE(written.open().has_value());
  const std::string line(1 << 20, 'x');
  const std::size_t most = unwritten_event_bytes_max / line.size();
  for (std::size_t number = 0; number < most; ++number) written.file->write(line);
  written.loop.run_for(700ms);  // it is looked at every half second
  REQUIRE(written.told.empty());
  written.file->write("{}\n");
  REQUIRE(written.until([&] { return written.said(0, "as fast as they come"); }));
  reader.reset();  // whoever writes ends
}
