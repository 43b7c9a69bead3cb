#include "rendezvous/net/ops/control_socket.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>
#include <regex>

#include "rendezvous/net/ops/http_port.hpp"
#include "tests/net/ops_server.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace torchup;
namespace fs = std::filesystem;

namespace {

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator{folder}) names.push_back(entry.path().filename());
  return names;
}

unsigned mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status.st_mode & 07777U;
}

UniqueFd connected(const std::string& path) {
  UniqueFd socket{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof name.sun_path - 1);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) socket.reset();
  return socket;
}

}  // namespace

TEST_CASE("a control socket shows when it can be connected to, and goes with its owner", "[net][ops]") {
  const test::TemporaryFolder folder;
  const fs::path directory = folder.path / "torchup";
  {
    const auto socket = ControlSocket::make(directory, 4711);
    REQUIRE(socket.has_value());
    REQUIRE(mode_of(directory) == 0700);
    REQUIRE(mode_of(socket->path()) == 0600);
    const auto names = names_in(directory);
    REQUIRE(names.size() == 1);
    REQUIRE(std::regex_match(names.front(), std::regex{"4711-[0-9a-f]{8}\\.sock"}));
    REQUIRE(connected(socket->path()));
    const auto another = ControlSocket::make(directory, 4711);
    REQUIRE(another.has_value());
    REQUIRE(names_in(directory).size() == 2);
  }
  REQUIRE(names_in(directory).empty());
}

TEST_CASE("a directory that others prepared or may use holds no control socket", "[net][ops]") {
  const test::TemporaryFolder folder;
  const fs::path directory = folder.path / "torchup";
  const auto refused = [&] {
    const auto socket = ControlSocket::make(directory, 1);
    return !socket && socket.error().code == errc::refused &&
           socket.error().message().find(directory) != std::string::npos;
  };
  SECTION("others may read it") {
    fs::create_directory(directory);
    fs::permissions(directory, fs::perms{0755});
    REQUIRE(refused());
    REQUIRE(names_in(directory).empty());
  }
  SECTION("its group may enter it") {
    fs::create_directory(directory);
    fs::permissions(directory, fs::perms{0710});
    REQUIRE(refused());
  }
  SECTION("a link") {
    fs::create_directory(folder.path / "elsewhere");
    fs::permissions(folder.path / "elsewhere", fs::perms{0700});
    fs::create_symlink(folder.path / "elsewhere", directory);
    REQUIRE(refused());
    REQUIRE(names_in(folder.path / "elsewhere").empty());
  }
  SECTION("a link that leads nowhere") {
    fs::create_symlink(folder.path / "nowhere", directory);
    REQUIRE(refused());
  }
  SECTION("no directory") {
    REQUIRE(UniqueFd{::creat(directory.c_str(), 0600)});
    REQUIRE(refused());
  }
  SECTION("another user's") {
    if (::geteuid() != 0) return;  // only root can give it away
    fs::create_directory(directory);
    fs::permissions(directory, fs::perms{0700});
    REQUIRE(::chown(directory.c_str(), 65534, 65534) == 0);
    REQUIRE(refused());
  }
}

TEST_CASE("a directory that cannot be is an error that names it", "[net][ops]") {
  const test::TemporaryFolder folder;
  const std::string missing = (folder.path / "none" / "torchup").string();
  const auto unmade = ControlSocket::make(missing, 1);
  REQUIRE_FALSE(unmade.has_value());
  REQUIRE(unmade.error().message().find(missing) != std::string::npos);
  // "/" + "1-" + 8 digits + ".sock"
  constexpr std::size_t name_bytes = 16, path_bytes_max = 107;
  const std::string base = folder.path.string() + "/";
  const std::string fits = base + std::string(path_bytes_max - name_bytes - base.size(), 'x');
  REQUIRE(ControlSocket::make(fits, 1).has_value());
  const auto longer = ControlSocket::make(fits + "x", 1);
  REQUIRE_FALSE(longer.has_value());
  REQUIRE(longer.error().code == errc::limit_exceeded);
  REQUIRE(longer.error().message().find(fits + "x") != std::string::npos);
  REQUIRE_FALSE(fs::exists(fits + "x"));
}

TEST_CASE("who comes by the control socket is known by his user", "[net][ops]") {
  const test::TemporaryFolder folder;
  auto socket = ControlSocket::make(folder.path / "torchup", 1);
  REQUIRE(socket.has_value());
  test::OpsServer server;
  server.jobs.add("job");
  std::string by;
  server.jobs.others = [&by](const OpsCall& call, const HttpServer::Reply& reply) {
    by = call.caller.by;
    reply(OpsAnswer{.status = 202});
  };
  std::vector<UniqueFd> sockets;
  sockets.push_back(socket->take());
  const auto door = std::make_shared<HttpDoor>();
  door->access.own_uid = ::geteuid();
  const HttpPort port{server.loop, server.http, std::move(sockets), door};
  test::OpsServer::Peer peer{server, connected(socket->path())};
  peer.post("/v1/jobs/job/restart", "{}");
  REQUIRE(peer.status() == 202);
  REQUIRE(by.find(std::to_string(::geteuid())) != std::string::npos);
  if (::geteuid() == 0) REQUIRE(by == "user root (uid 0)");
}
