#include "rendezvous/net/ops/control_socket.hpp"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace torchup {
namespace {

constexpr int waiting_max = 128;
constexpr std::size_t socket_path_bytes_max = sizeof sockaddr_un{}.sun_path - 1;

std::string control_directory(const std::string& directory) { return "control socket in " + directory; }

/// The directory is ours, and nobody else may use it: what is in it was put there by us.
Result<> prepare_directory(const std::string& directory) {
  const std::string what = control_directory(directory);
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return system_error(what);
  struct stat status {};
  if (::lstat(directory.c_str(), &status) != 0) return system_error(what);
  if (const std::string why = why_not_private(status, ::geteuid()); !why.empty()) {
    return fail(errc::refused, fmt::format("{}: {}", what, why));
  }
  return {};
}

std::string fresh_name(long pid) {
  std::uint32_t chance = 0;
  if (::getrandom(&chance, sizeof chance, 0) != sizeof chance) chance = static_cast<std::uint32_t>(pid);
  return fmt::format("{}-{:08x}", pid, chance);
}

}  // namespace

std::string runtime_directory() {
  const char* const named = std::getenv("TORCHUP_RUNTIME_DIR");
  return named && *named ? named : fmt::format("/tmp/torchup-{}", ::geteuid());
}

std::string why_not_private(const struct stat& status, uid_t owner, mode_t forbidden) {
  if (!S_ISDIR(status.st_mode)) return "that is no directory";
  if (status.st_uid != owner) return fmt::format("it belongs to the user of uid {}", status.st_uid);
  if ((status.st_mode & forbidden) != 0) return "others may use it; chmod 700 helps";
  return {};
}

Result<ControlSocket> ControlSocket::make(const std::string& directory, long pid) {
  const std::string what = control_directory(directory);
  const std::string path = directory + "/" + fresh_name(pid) + ".sock";
  if (path.size() > socket_path_bytes_max) {
    return fail(errc::limit_exceeded, fmt::format("{}: a socket's path has {} bytes at most; TORCHUP_RUNTIME_DIR names "
                                                  "another directory",
                                                  what, socket_path_bytes_max));
  }
  if (auto prepared = prepare_directory(directory); !prepared) return prepared.error();
  UniqueFd socket{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!socket) return system_error(what);
  // Under another name until somebody listens: one that shows is alive, or left over.
  const std::string unready = path.substr(0, path.rfind('.')) + ".new";
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  unready.copy(name.sun_path, socket_path_bytes_max);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) return system_error(what);
  if (::chmod(unready.c_str(), 0600) != 0 || ::listen(socket.get(), waiting_max) != 0 ||
      ::rename(unready.c_str(), path.c_str()) != 0) {
    auto failed = system_error(what);
    ::unlink(unready.c_str());
    return failed;
  }
  return ControlSocket{std::move(socket), path};
}

ControlSocket::ControlSocket(ControlSocket&& other) noexcept
    : socket_{std::move(other.socket_)}, path_{std::exchange(other.path_, {})} {}

ControlSocket& ControlSocket::operator=(ControlSocket&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(path_, other.path_);
  return *this;
}

ControlSocket::~ControlSocket() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

}  // namespace torchup
