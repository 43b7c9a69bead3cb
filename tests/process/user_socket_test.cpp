#include "launcher/os/ops/user_socket.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <future>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temporary_folder.hpp"
#include "tests/support/variable.hpp"

using namespace torchup;

namespace {

/// A launcher whose disk does what the test wants, when it wants it.
struct Launcher {
  [[nodiscard]] std::ptrdiff_t sockets() const {
    return std::distance(std::filesystem::directory_iterator{folder.path}, {});
  }
  void turn() {
    loop.restart();
    loop.poll();
  }
  void wait_for_disk() const {
    while (disk.queued_bytes() > 0) std::this_thread::yield();
  }

  test::TemporaryFolder folder;
  test::Variable variable{"TORCHUP_RUNTIME_DIR", folder.path.c_str()};
  asio::io_context loop{1};
  HttpServer server{loop, [](const OpsCall&, const HttpServer::Reply&) {}};
  DiskThread disk{loop};
  std::vector<std::string> warnings;
  UserSocket socket{loop, server, disk, ::getpid(), [this](std::string why) { warnings.push_back(std::move(why)); }};
};

}  // namespace

TEST_CASE("a control socket is there from its start to its end", "[process][user_socket]") {
  Launcher it;
  it.socket.open();
  it.turn();
  it.wait_for_disk();
  it.turn();
  REQUIRE(it.sockets() == 1);
  it.socket.close();
  REQUIRE(it.sockets() == 0);
  REQUIRE(it.warnings.empty());
}

TEST_CASE("no control socket stays behind that is made when its launcher ends", "[process][user_socket]") {
  Launcher it;
  SECTION("the loop has not heard of it") {
    it.socket.open();
    it.turn();
    it.wait_for_disk();
    REQUIRE(it.sockets() == 1);
    it.socket.close();
    REQUIRE(it.sockets() == 0);
  }
  SECTION("it is not there yet") {
    std::promise<void> goes_on;
    it.disk.call([on = goes_on.get_future().share()] { on.wait(); });
    it.socket.open();
    it.turn();
    it.socket.close();
    goes_on.set_value();
    it.wait_for_disk();
    REQUIRE(it.sockets() == 0);
  }
  it.turn();
  REQUIRE(it.sockets() == 0);
  REQUIRE(it.warnings.empty());
}
