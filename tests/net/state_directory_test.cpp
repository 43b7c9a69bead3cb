#include "rendezvous/net/coordinator/state_directory.hpp"

#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>

using namespace torchup;
using namespace std::chrono_literals;
namespace asio = boost::asio;
namespace fs = std::filesystem;

namespace {

struct Folder {
  Folder() {
    path = fs::temp_directory_path() / "torchup-state-XXXXXX";
    REQUIRE(::mkdtemp(path.data()));
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path;
};

/// What became of one write.
std::optional<Result<>> write(asio::io_context& loop, StateDirectory& directory, std::uint64_t number,
                              std::function<std::string()> content) {
  std::optional<Result<>> outcome;
  directory.write(number, std::move(content), [&](Result<> result) { outcome = std::move(result); });
  const auto work = asio::make_work_guard(loop);
  for (int i = 0; i < 200 && !outcome; ++i) {
    loop.restart();
    loop.run_one_for(50ms);
  }
  return outcome;
}

std::optional<Result<>> write(asio::io_context& loop, StateDirectory& directory, std::uint64_t number,
                              const std::string& content) {
  return write(loop, directory, number, [content] { return content; });
}

}  // namespace

TEST_CASE("what a file holds is made where the loop does not wait for it", "[net][state_directory]") {
  const Folder folder;
  asio::io_context loop;
  auto directory = StateDirectory::open(loop, folder.path + "/made");
  REQUIRE(directory.has_value());
  std::promise<std::thread::id> made_by;
  (*directory)->write(1, [&] { return made_by.set_value(std::this_thread::get_id()), std::string{"x"}; }, {});
  REQUIRE(made_by.get_future().get() != std::this_thread::get_id());
}

TEST_CASE("files are replaced whole, read in order of their numbers, and go", "[net][state_directory]") {
  const Folder folder;
  const std::string path = folder.path + "/made";
  asio::io_context loop;
  {
    auto directory = StateDirectory::open(loop, path);
    REQUIRE(directory.has_value());
    REQUIRE(write(loop, **directory, 10, "first")->has_value());
    REQUIRE(write(loop, **directory, 10, "second")->has_value());
    REQUIRE(write(loop, **directory, 9, std::string(300000, 'x'))->has_value());
    (*directory)->write(11, [] { return std::string{"given at the end"}; }, {});
    (*directory)->write(12, [] { return std::string{"gone"}; }, {});
    (*directory)->remove(12);
  }
  std::ofstream{path + "/job-10.state.new"} << "half";
  std::ofstream{path + "/notes.txt"} << "not ours";
  auto directory = StateDirectory::open(loop, path);
  REQUIRE(directory.has_value());
  REQUIRE_FALSE(fs::exists(path + "/job-10.state.new"));
  const auto files = (*directory)->read();
  REQUIRE(files.has_value());
  REQUIRE(files->size() == 3);
  REQUIRE((*files)[0].number == 9);
  REQUIRE((*files)[0].content == std::string(300000, 'x'));
  REQUIRE((*files)[1].content == "second");
  REQUIRE((*files)[1].path == path + "/job-10.state");
  REQUIRE((*files)[2].content == "given at the end");
}

TEST_CASE("a folder serves one at a time", "[net][state_directory]") {
  const Folder folder;
  asio::io_context loop;
  auto first = StateDirectory::open(loop, folder.path);
  REQUIRE(first.has_value());
  const auto second = StateDirectory::open(loop, folder.path);
  REQUIRE_FALSE(second.has_value());
  REQUIRE(second.error().code == errc::refused);
  first->reset();
  REQUIRE(StateDirectory::open(loop, folder.path).has_value());
}

TEST_CASE("a file that cannot be written is no old one either", "[net][state_directory]") {
  const Folder folder;
  asio::io_context loop;
  auto directory = StateDirectory::open(loop, folder.path);
  REQUIRE(directory.has_value());
  REQUIRE(write(loop, **directory, 3, "old")->has_value());
  fs::create_directory(folder.path + "/job-3.state.new");  // where the new one would be written
  const auto outcome = write(loop, **directory, 3, "new");
  REQUIRE(outcome.has_value());
  REQUIRE_FALSE(outcome->has_value());
  REQUIRE(outcome->error().context == folder.path + "/job-3.state");
  REQUIRE_FALSE(fs::exists(folder.path + "/job-3.state"));
  REQUIRE_FALSE(StateDirectory::open(loop, folder.path + "/no/such").has_value());
}

TEST_CASE("what cannot be read is not written", "[net][state_directory]") {
  const Folder folder;
  asio::io_context loop;
  auto directory = StateDirectory::open(loop, folder.path);
  REQUIRE(directory.has_value());
  REQUIRE(write(loop, **directory, 1, "old")->has_value());
  const auto larger = write(loop, **directory, 1, std::string(state_bytes_max + 1, 'x'));
  REQUIRE(larger->error().code == errc::limit_exceeded);
  REQUIRE((*directory)->read()->empty());
  std::ofstream{folder.path + "/job-2.state"} << "torchupd job";
  fs::resize_file(folder.path + "/job-2.state", state_bytes_max);
  REQUIRE((*directory)->read()->size() == 1);
  fs::resize_file(folder.path + "/job-2.state", state_bytes_max + 1);
  REQUIRE((*directory)->read().error().code == errc::limit_exceeded);
}

TEST_CASE("where descriptors have run out the file that is there stays", "[net][state_directory]") {
  const Folder folder;
  asio::io_context loop;
  auto directory = StateDirectory::open(loop, folder.path);
  REQUIRE(directory.has_value());
  REQUIRE(write(loop, **directory, 3, "old")->has_value());
  loop.restart();
  loop.poll();
  rlimit usual{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const int next = ::dup(0);
  REQUIRE(next > 0);
  ::close(next);
  const rlimit none_left{static_cast<rlim_t>(next), usual.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none_left) == 0);
  const auto outcome = write(loop, **directory, 3, "new");
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  REQUIRE(outcome.has_value());
  REQUIRE(outcome->error().code == boost::system::errc::too_many_files_open);
  REQUIRE((*directory)->read()->size() == 1);
  REQUIRE((*directory)->read()->front().content == "old");
  REQUIRE(write(loop, **directory, 3, "new")->has_value());
  REQUIRE((*directory)->read()->front().content == "new");
}

TEST_CASE("where a file's content cannot be made that write has failed, and nothing else", "[net][state_directory]") {
  const Folder folder;
  asio::io_context loop;
  auto directory = StateDirectory::open(loop, folder.path);
  REQUIRE(directory.has_value());
  REQUIRE(write(loop, **directory, 3, "old")->has_value());
  SECTION("for lack of memory: the file stays") {
    const auto outcome = write(loop, **directory, 3, []() -> std::string { throw std::bad_alloc{}; });
    REQUIRE(outcome.has_value());
    REQUIRE(outcome->error().code == boost::system::errc::not_enough_memory);
    REQUIRE(outcome->error().context == folder.path + "/job-3.state");
    REQUIRE((*directory)->read()->front().content == "old");
  }
  SECTION("for a fault of ours: no state is better than an old one") {
    const bool says_why = GENERATE(true, false);
    const auto outcome = write(loop, **directory, 3, [says_why]() -> std::string {
      if (says_why) throw std::runtime_error{"no seat"};
      throw 1;
    });
    REQUIRE(outcome.has_value());
    REQUIRE(outcome->error().message() ==
            folder.path + "/job-3.state: " + (says_why ? "no seat" : "it could not be made"));
    REQUIRE((*directory)->read()->empty());
  }
  REQUIRE(write(loop, **directory, 3, "new")->has_value());
}

TEST_CASE("a file goes, however much is to be written", "[net][state_directory]") {
  const Folder folder;
  asio::io_context loop;
  auto directory = StateDirectory::open(loop, folder.path);
  REQUIRE(directory.has_value());
  REQUIRE(write(loop, **directory, 2, "of a job that is over")->has_value());
  // For each that is written another comes: there always are some.
  const std::function<void(const Result<>&)> write_on = [&](const Result<>&) {
    (*directory)
        ->write(
            1, [] { return std::string{"x"}; }, write_on);
  };
  constexpr int many = 200;
  for (int i = 0; i < many; ++i) write_on({});
  (*directory)->remove(2);
  const auto limit = std::chrono::steady_clock::now() + 60s;
  while (fs::exists(folder.path + "/job-2.state") && std::chrono::steady_clock::now() < limit) {
    loop.restart();
    loop.run_for(1ms);
  }
  REQUIRE_FALSE(fs::exists(folder.path + "/job-2.state"));
}
