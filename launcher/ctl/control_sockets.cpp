#include "launcher/ctl/control_sockets.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/net/ops/control_socket.hpp"

namespace torchup {
namespace {

constexpr std::string_view users_prefix = "torchup-";
constexpr const char* daemon_folder = "/run/torchupd";
constexpr const char* users_parent = "/tmp";

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};
using OpenFolder = std::unique_ptr<DIR, CloseFolder>;

std::vector<std::string> names_in(int folder, std::size_t most) {
  std::vector<std::string> names;
  const OpenFolder open{::fdopendir(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC))};
  while (open && names.size() < most) {
    const dirent* const entry = ::readdir(open.get());
    if (!entry) break;
    names.emplace_back(entry->d_name);
  }
  std::ranges::sort(names);
  return names;
}

/// Who may have made a folder, and whether others may look into it.
struct FolderRule {
  uid_t owner = 0;
  mode_t forbidden = 077;  ///< no such bits
};

void look_into(const std::string& path, const FolderRule& rule, FoundSockets& found) {
  auto folder = std::make_shared<const UniqueFd>(::open(path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const auto complain = [&](std::string_view why) {
    found.complaints.push_back(fmt::format("{} is not looked into: {}", printable(path), why));
  };
  if (!*folder) {
    if (errno == ELOOP || errno == ENOTDIR) complain("that is no directory");
    if (errno == EACCES) complain("we may not");
    return;
  }
  struct stat status {};
  if (::fstat(folder->get(), &status) != 0) return;
  if (const std::string why = why_not_private(status, rule.owner, rule.forbidden); !why.empty()) return complain(why);
  for (std::string& name : names_in(folder->get(), sockets_max)) {
    const auto pid = pid_in_socket_name(name);
    if (pid) found.sockets.push_back({path + "/" + name, *pid, std::move(name), folder, status.st_uid});
  }
}

/// As root: of those that are named after a user.
void look_into_users(FoundSockets& found) {
  const UniqueFd parent{::open(users_parent, O_PATH | O_DIRECTORY | O_CLOEXEC)};
  for (const std::string& name : names_in(parent.get(), 65536)) {
    if (!name.starts_with(users_prefix)) continue;
    const char* const digits = name.data() + users_prefix.size();
    uid_t uid = 0;
    const auto [end, error] = std::from_chars(digits, name.data() + name.size(), uid);
    if (error != std::errc{} || end != name.data() + name.size() || uid == ::geteuid()) continue;
    look_into(fmt::format("{}/{}", users_parent, name), {.owner = uid}, found);
  }
}

}  // namespace

std::optional<pid_t> pid_in_socket_name(std::string_view name) {
  constexpr std::string_view ending = ".sock";
  constexpr std::size_t random_digits = 8;
  if (!name.ends_with(ending)) return std::nullopt;
  name.remove_suffix(ending.size());
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  if (error != std::errc{} || pid <= 0) return std::nullopt;
  const std::string_view rest = name.substr(static_cast<std::size_t>(end - name.data()));
  const bool whole = rest.size() == random_digits + 1 && rest.front() == '-' &&
                     rest.find_first_not_of("0123456789abcdef", 1) == std::string_view::npos;
  return whole ? std::optional{pid} : std::nullopt;
}

FoundSockets find_control_sockets(bool all_users) {
  FoundSockets found;
  const uid_t own = ::geteuid();
  const std::string folder = runtime_directory();
  look_into(folder, {.owner = own}, found);
  // Root alone makes folders there; systemd gives it to the service's user.
  struct stat status {};
  if (folder != daemon_folder && ::stat(daemon_folder, &status) == 0 && (own == 0 || status.st_uid == own))
    look_into(daemon_folder, {.owner = status.st_uid, .forbidden = 022}, found);
  if (all_users && own == 0) look_into_users(found);
  return found;
}

Result<UniqueFd> connect_to(const SocketFile& socket) {
  struct stat status {};
  const int folder = socket.folder->get();
  if (::fstatat(folder, socket.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
    return system_error(printable(socket.path));
  if (!S_ISSOCK(status.st_mode)) return fail(errc::refused, printable(socket.path) + " is no socket");
  UniqueFd fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  if (!fd) return system_error("socket");
  // By the folder that was looked at, whatever stands under its path now and however long that is.
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string way = fmt::format("/proc/self/fd/{}/{}", folder, socket.name);
  if (way.size() >= sizeof address.sun_path) return fail(errc::limit_exceeded, printable(socket.path));
  std::memcpy(address.sun_path, way.c_str(), way.size() + 1);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  const int error = errno;
  if (error == ECONNREFUSED) ::unlinkat(folder, socket.name.c_str(), 0);
  return system_error(error, printable(socket.path));
}

}  // namespace torchup
