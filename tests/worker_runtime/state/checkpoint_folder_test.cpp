#include "worker_runtime/state/checkpoint_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <optional>
#include <torchup/error.hpp>

#include "tests/support/temporary_folder.hpp"
#include "worker_runtime/state/crc32.hpp"
#include "worker_runtime/state/file_reader.hpp"

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

/// Does something in a process of its own, which then lives on until this is gone.
class AnotherProcess {
 public:
  template <class Action>
  explicit AnotherProcess(const Action& action) {
    std::array<int, 2> ready{};
    REQUIRE(::pipe(ready.data()) == 0);
    id_ = ::fork();
    if (id_ == 0) {
      ::alarm(60);
      try {
        const auto result = action();
        static_cast<void>(::write(ready[1], "x", 1) < 0 || !result || ::write(ready[1], "y", 1) < 0);
        ::close(ready[1]);
        for (;;) ::pause();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "another process: %s\n", error.what());
      }
      ::_exit(1);  // it is a copy of this program, which must not go on with the tests
    }
    ::close(ready[1]);
    std::array<char, 2> said{};
    ssize_t size = 0;
    for (ssize_t more = 1; more > 0 && size < 2; size += more) more = ::read(ready[0], said.data() + size, 2 - size);
    ::close(ready[0]);
    works_ = size == 2;
  }
  ~AnotherProcess() { kill(); }
  AnotherProcess(const AnotherProcess&) = delete;
  AnotherProcess& operator=(const AnotherProcess&) = delete;

  bool works() const { return works_; }  ///< the action's result is one that is true
  pid_t id() const { return id_; }
  void kill() {
    if (id_ > 0) ::kill(id_, SIGKILL), ::waitpid(id_, nullptr, 0);
    id_ = -1;
  }

 private:
  pid_t id_ = -1;
  bool works_ = false;
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
  CheckpointFolder{place.path}.save(content_of(1), 1);
  AnotherProcess first{[&] { return WriterLock::try_take(place.path); }};
  REQUIRE(first.works());
  CheckpointFolder second{place.path, std::chrono::milliseconds{0}};
  const auto left_over = place.path / "step-000000000002.tmp-99999999";  // what the first one would be writing
  std::filesystem::create_directory(left_over);
  REQUIRE(second.found().whole.size() == 1);
  REQUIRE_THROWS_WITH(second.save(content_of(2), 1),
                      Catch::Contains(place.path.string()) && Catch::Contains("process " + std::to_string(first.id())));
  REQUIRE(std::filesystem::exists(left_over));
  first.kill();  // the right goes with the process that had it
  second.save(content_of(2), 1);
  REQUIRE(second.found().whole.front().step == 2);
}

TEST_CASE("objects of one process share the right to write in a folder", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  const auto alias = place.path.string() + "/../" + place.path.filename().string();
  const auto others_can_write = [&] {
    return AnotherProcess{[&] { return WriterLock::try_take(place.path); }}.works();
  };
  std::optional<CheckpointFolder> first{std::in_place, place.path, std::chrono::milliseconds{0}};
  std::optional<CheckpointFolder> second{std::in_place, alias, std::chrono::milliseconds{0}};
  for (int step = 1; step <= 6; step += 2) {
    first->save(content_of(step), 0);
    second->save(content_of(step + 1), 0);
  }
  REQUIRE(first->found().whole.size() == 6);
  SECTION("until the last of them is gone") {
    second.reset();
    REQUIRE_FALSE(others_can_write());
    first.reset();
    REQUIRE(others_can_write());
  }
  SECTION("until one of them says that another rank writes, and then anew") {
    first->stop_writing();
    REQUIRE(others_can_write());
    second->save(content_of(7), 0);
    REQUIRE_FALSE(others_can_write());
  }
  SECTION("but not with processes that are forked from it, which have none of it when it ends") {
    const AnotherProcess forked{[&] {
      try {
        first->save(content_of(7), 0);
      } catch (const Error& error) {
        return std::string{error.what()}.find("process " + std::to_string(::getppid())) != std::string::npos;
      }
      return false;
    }};
    REQUIRE(forked.works());
    first->stop_writing();
    REQUIRE(others_can_write());
  }
  SECTION("until its file is another one") {
    std::filesystem::remove(place.path / "writer.lock");
    const AnotherProcess other{[&] { return WriterLock::try_take(place.path); }};
    REQUIRE(other.works());
    REQUIRE_THROWS_WITH(first->save(content_of(7), 0), Catch::Contains("process " + std::to_string(other.id())));
  }
}

TEST_CASE("who lets go of a folder lets go of it for all objects of the process", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  const CheckpointFolder first{place.path}, second{place.path};
  second.save(content_of(1), 0);
  auto queued = second.join_line();
  auto letting_go = std::async(std::launch::async, [&] { first.stop_writing(); });
  const auto waits = letting_go.wait_for(std::chrono::milliseconds{100});
  second.save(content_of(2), 0);  // what was queued
  queued.reset();
  letting_go.get();
  REQUIRE(waits == std::future_status::timeout);
  REQUIRE(AnotherProcess{[&] { return WriterLock::try_take(place.path); }}.works());
}

TEST_CASE("what is in the place of the lock and no file of this name is left alone", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place, home;
  std::filesystem::permissions(place.path, std::filesystem::perms{0777});
  const auto lock = place.path / "writer.lock", theirs = home.path / "theirs";
  std::ofstream{theirs} << "a key";
  std::filesystem::permissions(theirs, std::filesystem::perms{0600});
  SECTION("a link to a file") { std::filesystem::create_symlink(theirs, lock); }
  SECTION("a second name of a file") { std::filesystem::create_hard_link(theirs, lock); }
  SECTION("a pipe") { REQUIRE(::mkfifo(lock.c_str(), 0666) == 0); }
  SECTION("a folder") { std::filesystem::create_directory(lock); }
  REQUIRE_THROWS_WITH(WriterLock::try_take(place.path), Catch::Contains(lock.string()));
  REQUIRE(std::filesystem::file_size(theirs) == 5);
  REQUIRE(std::filesystem::status(theirs).permissions() == std::filesystem::perms{0600});
}

TEST_CASE("objects of one process write into a folder by turns", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  const auto save_often = [&] {
    const CheckpointFolder folder{place.path, std::chrono::milliseconds{0}};
    for (int i = 0; i < 50; ++i) folder.save(content_of(1), 0);
  };
  auto other = std::async(std::launch::async, save_often);
  REQUIRE_NOTHROW(save_often());
  REQUIRE_NOTHROW(other.get());
  REQUIRE(entries_of(place.path) == 2);
}

TEST_CASE("who may write in a folder may lock it, whoever made the lock", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  std::filesystem::permissions(place.path, std::filesystem::perms{0777});
  const auto before = ::umask(0077);
  REQUIRE(WriterLock::try_take(place.path));
  ::umask(before);
  const auto lock = place.path / "writer.lock";
  REQUIRE(std::filesystem::status(lock).permissions() == std::filesystem::perms{0666});

  if (::geteuid() == 0) {  // what root makes in somebody's folder is his
    const test::TemporaryFolder home;
    REQUIRE(::chown(home.path.c_str(), 65534, 65533) == 0);
    REQUIRE(WriterLock::try_take(home.path));
    struct stat made {};
    REQUIRE(::stat((home.path / "writer.lock").c_str(), &made) == 0);
    REQUIRE((made.st_uid == 65534 && made.st_gid == 65533));
  }

  // One of an older release's, which its owner has for himself.
  const auto as_somebody_else = [&](int permissions, const std::function<bool()>& action) {
    std::filesystem::permissions(lock, std::filesystem::perms(permissions));
    return AnotherProcess{[&, action] {
             // The owner who is no root is somebody else by the permissions alone.
             if (::geteuid() == 0 && ::seteuid(65534) != 0) return false;
             return action();
           }}
        .works();
  };
  REQUIRE(as_somebody_else(0444, [&] { return WriterLock::try_take(place.path) != nullptr; }));
  REQUIRE(as_somebody_else(0, [&] {
    try {
      const auto taken = WriterLock::try_take(place.path);
    } catch (const Error& error) {
      const std::string text = error.what();
      return text.find(lock.string() + ": Permission denied") != std::string::npos &&
             text.find("have its owner make it readable and writable") != std::string::npos;
    }
    return false;
  }));
}

TEST_CASE("what it means that a file cannot be locked", "[worker_runtime][checkpoint]") {
  for (const int error : {EWOULDBLOCK, EACCES}) REQUIRE(lock_failure(error, true) == LockFailure::held);
  for (const int error : {ENOSYS, EOPNOTSUPP, ENOLCK, EINVAL})
    REQUIRE(lock_failure(error, true) == LockFailure::no_locks);
  REQUIRE(lock_failure(EBADF, false) == LockFailure::unwritable);
  for (const int error : {EBADF, EIO, ESTALE}) REQUIRE(lock_failure(error, true) == LockFailure::failed);
}

TEST_CASE("a file that a file server has a lease on is read when that gives it back", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  const auto path = place.path / "leased";
  std::ofstream{path} << "text";
  const AnotherProcess server{[&] {
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    return ::fcntl(fd, F_SETLEASE, F_WRLCK) == 0;  // who is asked for it is killed by SIGIO, and gives it back so
  }};
  REQUIRE(server.works());
  REQUIRE(FileReader{path}.bytes() == 4);
}

TEST_CASE("a step that no folder could be named by is refused", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  const CheckpointFolder folder{place.path};
  REQUIRE_THROWS_WITH(folder.save(content_of(-1), 0), Catch::Contains("step -1"));
  folder.save(content_of(0), 0);
  REQUIRE(folder.found().whole.front().step == 0);
}

TEST_CASE("what a crashed writer left goes before a new checkpoint needs its room", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  const CheckpointFolder folder{place.path};
  folder.save(content_of(1), 3);
  const auto left_over = place.path / "step-000000000007.tmp-99999999";
  std::filesystem::create_directory(left_over);
  std::ofstream{left_over / "model.safetensors"} << "half of it";

  CheckpointContent broken = content_of(2);
  broken.model.emplace_back("undefined", torch::Tensor{});
  REQUIRE_THROWS_AS(folder.save(broken, 3), Error);
  REQUIRE_FALSE(std::filesystem::exists(left_over));
  REQUIRE(entries_of(place.path) == 2);  // the lock; nothing of the failed one either
  REQUIRE(torch::equal(folder.load(1).model.at("weight"), torch::ones({2})));
}

// In a container that was started again, every process has the number of the one that crashed.
TEST_CASE("what a crashed writer of our number left is not in the way", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  const CheckpointFolder folder{place.path};
  std::ofstream{place.path / ("step-000000000001.tmp-" + std::to_string(::getpid()))} << "no folder";
  folder.save(content_of(1), 3);
  REQUIRE(entries_of(place.path) == 2);
  REQUIRE(torch::equal(folder.load(1).model.at("weight"), torch::ones({2})));
}

TEST_CASE("a damaged checkpoint is told of once and goes with the next save", "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  const CheckpointFolder folder{place.path};
  const auto path_of = [&](int step) { return place.path / ("step-00000000000" + std::to_string(step)); };
  for (int step = 1; step <= 5; ++step) folder.save(content_of(step), 0);
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
  REQUIRE(folder.found().damaged == std::set<std::int64_t>{1, 2, 3});
  REQUIRE(said.times("passed over") == 4);
  folder.save(content_of(6), 0);
  folder.save(content_of(7), 0);
  REQUIRE(said.times("passed over") == 4);
  for (const int step : {1, 2, 3}) REQUIRE_FALSE(std::filesystem::exists(path_of(step)));
  for (const int step : {4, 5, 6, 7}) REQUIRE(std::filesystem::exists(path_of(step)));
}

TEST_CASE("a checkpoint that was being replaced when its writer ended has its name again",
          "[worker_runtime][checkpoint]") {
  const test::TemporaryFolder place;
  const CheckpointFolder folder{place.path};
  folder.save(content_of(7), 1);
  const auto name = place.path / "step-000000000007";
  std::filesystem::rename(name, name.string() + ".tmp-99999999.old");  // where names cannot be exchanged
  std::filesystem::create_directory(name.string() + ".tmp-99999999");
  REQUIRE(folder.found().whole.size() == 1);
  REQUIRE(torch::equal(folder.load(7).model.at("weight"), torch::ones({2})));
}
