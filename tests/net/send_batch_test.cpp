// Messages to many sockets with one call of the kernel's.
#include "rendezvous/net/store/send_batch.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/io_uring_calls.hpp"
#include "tests/support/variable.hpp"

using namespace torchup;
using namespace torchup::test;

namespace {

/// One who is sent to, and who reads.
struct Ends {
  Ends() {
    std::array<int, 2> made{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, made.data()) == 0);
    sender.reset(made[0]);
    reader.reset(made[1]);
  }
  /// All that is there.
  [[nodiscard]] std::string read() const {
    std::string all;
    std::array<char, 65536> buffer;
    for (ssize_t got; (got = ::recv(reader.get(), buffer.data(), buffer.size(), 0)) > 0;)
      all.append(buffer.data(), static_cast<std::size_t>(got));
    return all;
  }

  UniqueFd sender, reader;
};

std::string message(std::size_t i) { return fmt::format("message {}", i); }

std::vector<int> sent(SendBatch& batch, const std::vector<Ends>& all, const std::vector<std::string>& messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) batch.add(all[i].sender.get(), messages[i]);
  const auto results = batch.send();
  return {results.begin(), results.end()};
}

int ring_descriptor() {
  for (const auto& each : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    std::error_code gone;
    if (std::filesystem::read_symlink(each.path(), gone) == "anon_inode:[io_uring]")
      return std::stoi(each.path().filename());
  }
  return -1;
}

bool has_ring_memory() {
  std::ifstream maps{"/proc/self/maps"};
  for (std::string line; std::getline(maps, line);)
    if (line.find("io_uring") != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("a full batch takes one call, and another one after it", "[net][send_batch]") {
  need_io_uring();
  auto batch = SendBatch::make();
  const std::vector<Ends> all(SendBatch::size_max);
  std::vector<std::string> messages;
  for (std::size_t i = 0; i < all.size(); ++i) messages.push_back(message(i));
  for (int round = 0; round < 3; ++round) {
    const ChangedIoUring counted{{}};
    const std::vector<int> results = sent(*batch, all, messages);
    CHECK(io_uring_calls.entered == 1);
    REQUIRE(results.size() == all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      REQUIRE(results[i] == static_cast<int>(messages[i].size()));
      REQUIRE(all[i].read() == messages[i]);
    }
  }
}

TEST_CASE("who has no room, is gone or is no socket is told of, and nobody else feels it", "[net][send_batch]") {
  need_io_uring();
  auto batch = SendBatch::make();
  std::vector<Ends> all(6);
  all[3].reader.reset();
  const std::string much(std::size_t{8} << 20, 'm');
  batch->add(all[0].sender.get(), "first");
  batch->add(all[1].sender.get(), much);
  batch->add(all[1].sender.get(), "no room");
  batch->add(all[3].sender.get(), "gone");
  batch->add(100'000, "no socket");
  batch->add(all[5].sender.get(), "last");
  const auto results = batch->send();
  REQUIRE(results.size() == 6);
  CHECK(results[0] == 5);
  CHECK(results[1] > 0);
  CHECK(results[1] < static_cast<int>(much.size()));
  CHECK(results[2] == -EAGAIN);
  CHECK(results[3] == -EPIPE);  // and no SIGPIPE
  CHECK(results[4] == -EBADF);
  CHECK(results[5] == 4);
  CHECK(all[0].read() == "first");
  CHECK(all[1].read().size() == static_cast<std::size_t>(results[1]));
  CHECK(all[1].read().empty());  // nothing was left to be sent when there is room
  CHECK(all[5].read() == "last");
}

TEST_CASE("what a batch was cut short of is told, and not sent later", "[net][send_batch]") {
  need_io_uring();
  auto batch = SendBatch::make();
  const std::vector<Ends> all(9);
  std::vector<std::string> messages;
  for (std::size_t i = 0; i < all.size(); ++i) messages.push_back(message(i));
  SECTION("in the middle") {
    {
      const ChangedIoUring cut{{.taken_max = 4, .second_error = GENERATE(EBUSY, EINTR, ENOMEM, EAGAIN)}};
      const std::vector<int> results = sent(*batch, all, messages);
      CHECK(std::vector<int>(results.begin(), results.begin() + 4) == std::vector<int>(4, 9));
      CHECK(std::vector<int>(results.begin() + 4, results.end()) == std::vector<int>(5, -EINTR));
    }
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i].read() == (i < 4 ? messages[i] : ""));
  }
  SECTION("from the beginning") {
    const ChangedIoUring none{{.enter_error = ENOMEM}};
    CHECK(sent(*batch, all, messages) == std::vector<int>(9, -EINTR));
  }
  SECTION("in other threads than its own") {
    std::thread{[&] { CHECK(sent(*batch, all, messages) == std::vector<int>(9, -EINTR)); }}.join();
  }
  const std::vector<std::string> others(9, "others");
  CHECK(sent(*batch, all, others) == std::vector<int>(9, 6));
  for (const Ends& each : all) CHECK(each.read() == "others");
}

TEST_CASE("a batch that takes several calls is sent whole", "[net][send_batch]") {
  need_io_uring();
  auto batch = SendBatch::make();
  const std::vector<Ends> all(100);
  const ChangedIoUring slow{{.taken_max = 7}};
  CHECK(sent(*batch, all, std::vector<std::string>(100, "all of it")) == std::vector<int>(100, 9));
  CHECK(io_uring_calls.entered == 15);
  for (const Ends& each : all) CHECK(each.read() == "all of it");
}

TEST_CASE("a child process has nothing of a batch", "[net][send_batch]") {
  need_io_uring();
  const auto batch = SendBatch::make();
  REQUIRE(ring_descriptor() >= 0);
  CHECK((::fcntl(ring_descriptor(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(has_ring_memory());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(has_ring_memory() ? 1 : 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("a kernel that has no io_uring for us is an error that says why", "[net][send_batch]") {
  const int error = GENERATE(EPERM, ENOSYS, ENOMEM, EINVAL, EMFILE);
  const ChangedIoUring none{{.setup_error = error}};
  const auto batch = SendBatch::make();
  REQUIRE(batch.has_error());
  CHECK(batch.error().code == boost::system::error_code{error, boost::system::system_category()});
  CHECK(batch.error().context == "io_uring_setup");
}

TEST_CASE("a kernel that only says that it sends is found out", "[net][send_batch]") {
  need_io_uring();
  const ChangedIoUring liar{{.takes_nothing = true}};
  const auto batch = SendBatch::make();
  REQUIRE(batch.has_error());
  CHECK(batch.error().code == boost::system::errc::not_supported);
  CHECK(ring_descriptor() == -1);
}

TEST_CASE("the fewest messages of a batch come from the environment, or no batch is wanted", "[net][send_batch]") {
  const std::string name = "TORCHUP_SEND_BATCH_MIN";
  const Variable variable{name, nullptr};
  CHECK(send_batch_min(16).value() == 16);
  for (const int wanted : {3, 0}) {
    variable.set(std::to_string(wanted).c_str());
    CHECK(send_batch_min(16).value() == static_cast<std::size_t>(wanted));
  }
  for (const char* const wrong : {"", "many", "3 or so", "-1"}) {
    variable.set(wrong);
    const auto min = send_batch_min(16);
    REQUIRE(min.has_error());
    CHECK(min.error().message() ==
          fmt::format("{} is \"{}\": a number of clients is wanted, 0 for no batches", name, wrong));
  }
}
