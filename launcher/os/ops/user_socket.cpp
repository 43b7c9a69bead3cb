#include "launcher/os/ops/user_socket.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>
#include <vector>

namespace torchup {

UserSocket::UserSocket(asio::io_context& loop, HttpServer& server, DiskThread& disk, pid_t launcher,
                       std::function<void(std::string)> warn)
    : loop_{loop}, server_{server}, disk_{disk}, launcher_{launcher}, warn_{std::move(warn)} {}

void UserSocket::open() { spawn(loop_, "control socket", make()); }

Task<> UserSocket::make() {
  const std::string directory = runtime_directory();
  using Made = std::shared_ptr<Result<ControlSocket>>;
  std::function<Made()> work = [directory, launcher = launcher_] {
    return std::make_shared<Result<ControlSocket>>(ControlSocket::make(directory, launcher));
  };
  const std::optional<Made> made = co_await disk_.ask(std::move(work));
  if (closed_) co_return;
  if (!made) {
    warn_(fmt::format("no control socket for torchupctl: the disk of {} does not answer", directory));
  } else if (!**made) {
    warn_("no control socket for torchupctl: " + (*made)->error().message());
  } else {
    socket_.emplace(std::move(***made));
    std::vector<UniqueFd> sockets;
    sockets.push_back(socket_->take());
    const auto door = std::make_shared<HttpDoor>();
    door->access.own_uid = ::geteuid();
    port_.emplace(loop_, server_, std::move(sockets), door);
  }
}

void UserSocket::close() {
  closed_ = true;
  port_.reset();
  socket_.reset();
}

}  // namespace torchup
