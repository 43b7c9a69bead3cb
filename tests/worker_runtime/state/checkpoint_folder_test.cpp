#include "worker_runtime/state/checkpoint_folder.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <torchup/error.hpp>

#include "tests/support/temporary_folder.hpp"
#include "worker_runtime/state/crc32.hpp"

using namespace torchup;

namespace {

/// What is said on stderr while it lives.
class Said {
 public:
  Said() : file_{std::tmpfile()}, before_{::dup(STDERR_FILENO)} { ::dup2(::fileno(file_), STDERR_FILENO); }
  ~Said() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    std::fclose(file_);
  }
  int times(const std::string& text) {
    std::string all(static_cast<std::size_t>(::lseek(STDERR_FILENO, 0, SEEK_END)), '\0');
    all.resize(static_cast<std::size_t>(::pread(STDERR_FILENO, all.data(), all.size(), 0)));
    int count = 0;
    for (auto at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) ++count;
    return count;
  }

 private:
  std::FILE* file_;
  int before_;
};

CheckpointContent content_of(std::int64_t step) {
  return {.facts = {{"step", step}}, .model = {{"weight", torch::ones({2})}}, .training = {}};
}

auto entries_of(const std::filesystem::path& folder) {
  return std::distance(std::filesystem::directory_iterator{folder}, {});
}

}  // namespace

TEST_CASE("a folder has one writer, and readers beside it", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  std::optional<CheckpointFolder> first{std::in_place, place.path};
  CheckpointFolder second{place.path, std::chrono::milliseconds{0}};
  first->save(content_of(1), 1, {});
  const auto left_over = place.path / "step-000000000002.tmp-99999999";  // what the first one would be writing
  std::filesystem::create_directory(left_over);
  REQUIRE(second.found().whole.size() == 1);
  REQUIRE_THROWS_WITH(second.save(content_of(2), 1, {}),
                      Catch::Contains(place.path.string()) && Catch::Contains("process " + std::to_string(::getpid())));
  REQUIRE(std::filesystem::exists(left_over));
  REQUIRE(first->found().whole.size() == 1);
  SECTION("until it is gone") { first.reset(); }
  SECTION("until it says so") { first->stop_writing(); }
  second.save(content_of(2), 1, {});
  REQUIRE(second.found().whole.front().step == 2);
}

TEST_CASE("the right to write goes with the process that had it", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  std::array<int, 2> ready{};
  REQUIRE(::pipe(ready.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = WriterLock::try_take(place.path);
    static_cast<void>(::write(ready[1], "x", lock ? 1 : 0) < 0);
    ::alarm(60);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  ::close(ready[0]);
  REQUIRE_FALSE(WriterLock::try_take(place.path));
  ::kill(child, SIGKILL);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  REQUIRE(WriterLock::try_take(place.path));
}

TEST_CASE("what a crashed writer left goes before a new checkpoint needs its room", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  const CheckpointFolder folder{place.path};
  folder.save(content_of(1), 3, {});
  const auto left_over = place.path / "step-000000000007.tmp-99999999";
  std::filesystem::create_directory(left_over);
  std::ofstream{left_over / "model.safetensors"} << "half of it";

  CheckpointContent broken = content_of(2);
  broken.model.emplace_back("undefined", torch::Tensor{});
  REQUIRE_THROWS_AS(folder.save(broken, 3, {}), Error);
  REQUIRE_FALSE(std::filesystem::exists(left_over));
  REQUIRE(entries_of(place.path) == 2);  // the lock; nothing of the failed one either
  REQUIRE(torch::equal(folder.load(1).model.at("weight"), torch::ones({2})));
}

// In a container that was started again, every process has the number of the one that crashed.
TEST_CASE("what a crashed writer of our number left is not in the way", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  const CheckpointFolder folder{place.path};
  std::ofstream{place.path / ("step-000000000001.tmp-" + std::to_string(::getpid()))} << "no folder";
  folder.save(content_of(1), 3, {});
  REQUIRE(entries_of(place.path) == 2);
  REQUIRE(torch::equal(folder.load(1).model.at("weight"), torch::ones({2})));
}

TEST_CASE("a damaged checkpoint is told of once and goes with the next save", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  const CheckpointFolder folder{place.path};
  const auto path_of = [&](int step) { return place.path / ("step-00000000000" + std::to_string(step)); };
  for (int step = 1; step <= 5; ++step) folder.save(content_of(step), 0, {});
  std::filesystem::resize_file(path_of(1) / "model.safetensors", 9);
  std::filesystem::remove(path_of(2) / "manifest.json");  // as a removal that was interrupted leaves it
  std::ofstream{path_of(3) / "manifest.json"} << "{}";
  {  // of a later release
    const auto manifest = path_of(4) / "manifest.json";
    std::string text(std::filesystem::file_size(manifest), '\0');
    std::ifstream{manifest}.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(text.find(",\n \"crc32\""));
    text.replace(text.find("\"format\": 1"), 11, "\"format\": 2");
    std::ofstream{manifest} << text << ",\n \"crc32\": " << crc32(0, text.data(), text.size()) << "\n}\n";
  }
  Said said;
  REQUIRE(folder.found().whole.size() == 1);
  REQUIRE(folder.found().passed_over.damaged == std::set<std::int64_t>{1, 2, 3});
  REQUIRE(said.times("passed over") == 4);
  folder.save(content_of(6), 0, {});
  folder.save(content_of(7), 0, {});
  REQUIRE(said.times("passed over") == 4);
  for (const int step : {1, 2, 3}) REQUIRE_FALSE(std::filesystem::exists(path_of(step)));
  for (const int step : {4, 5, 6, 7}) REQUIRE(std::filesystem::exists(path_of(step)));
}

TEST_CASE("a checkpoint that was being replaced when its writer ended has its name again",
          "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  const CheckpointFolder folder{place.path};
  folder.save(content_of(7), 1, {});
  const auto name = place.path / "step-000000000007";
  std::filesystem::rename(name, name.string() + ".tmp-99999999.old");  // where names cannot be exchanged
  std::filesystem::create_directory(name.string() + ".tmp-99999999");
  REQUIRE(folder.found().whole.size() == 1);
  REQUIRE(torch::equal(folder.load(7).model.at("weight"), torch::ones({2})));
}
