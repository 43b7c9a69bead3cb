#include "launcher/os/ops/user_socket.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>
#include <vector>

namespace torchup {
namespace {

/// A disk that takes longer than this keeps the file.
constexpr Duration making_limit = std::chrono::seconds{1};

}  // namespace

UserSocket::UserSocket(asio::io_context& loop, HttpServer& server, DiskThread& disk, pid_t launcher,
                       std::function<void(std::string)> warn)
    : loop_{loop}, server_{server}, disk_{disk}, launcher_{launcher}, warn_{std::move(warn)} {}

void UserSocket::open() { spawn(loop_, "control socket", make()); }

Task<> UserSocket::make() {
  const std::string directory = runtime_directory();
  std::function<Result<>()> work = [directory, launcher = launcher_, made = made_]() -> Result<> {
    const std::lock_guard lock{made->making};
    if (made->closed) return {};
    auto socket = ControlSocket::make(directory, launcher);
    if (!socket) return socket.error();
    if (!made->closed) made->socket.emplace(std::move(*socket));
    return {};
  };
  const std::optional<Result<>> done = co_await disk_.ask(std::move(work));
  if (made_->closed) co_return;
  if (!done) {
    made_->closed = true;
    warn_(fmt::format("no control socket for torchupctl: the disk of {} does not answer", directory));
  } else if (!*done) {
    warn_("no control socket for torchupctl: " + done->error().message());
  } else {
    std::vector<UniqueFd> sockets;
    sockets.push_back(made_->socket->take());
    const auto door = std::make_shared<HttpDoor>();
    door->access.own_uid = ::geteuid();
    port_.emplace(loop_, server_, std::move(sockets), door);
  }
}

void UserSocket::close() {
  made_->closed = true;
  port_.reset();
  const std::unique_lock lock{made_->making, making_limit};
  if (lock) made_->socket.reset();
}

}  // namespace torchup
