#include "launcher/os/io/named_file.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>

#include "rendezvous/net/io/write_all.hpp"

namespace torchup {
namespace {

struct Place {
  UniqueFd folder;
  std::string name;
};

/// The folder of `path`. Errors: the system's, with the folder's path.
Result<Place> place_of(const std::string& path) {
  const std::filesystem::path whole{path};
  const std::string parent = whole.has_parent_path() ? whole.parent_path().string() : ".";
  Place place{UniqueFd{::open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)}, whole.filename().string()};
  if (!place.folder) return system_error(parent);
  return place;
}

/// A symbolic link that we, root or the folder's owner have laid; or no link at all.
bool trusted(const Place& place) {
  struct stat link {};
  struct stat folder {};
  if (::fstatat(place.folder.get(), place.name.c_str(), &link, AT_SYMLINK_NOFOLLOW) != 0) return true;
  if (!S_ISLNK(link.st_mode) || link.st_uid == ::geteuid() || link.st_uid == 0) return true;
  const bool shared = ::fstat(place.folder.get(), &folder) != 0 || (folder.st_mode & S_IWOTH) != 0;
  return !shared && link.st_uid == folder.st_uid;
}

Result<UniqueFd> open_in_place(const Place& place, const std::string& path, int flags, mode_t mode) {
  if (!trusted(place)) return fail(errc::refused, path + ": a symbolic link of another user is not followed");
  UniqueFd fd{
      ::openat(place.folder.get(), place.name.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | flags, mode)};
  if (!fd) return system_error(path);
  // Only the opening must not wait.
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
  return fd;
}

}  // namespace

std::string random_name() {
  constexpr std::string_view alphabet = "abcdefghijklmnopqrstuvwxyz0123456789_";
  std::array<unsigned char, random_name_length> chance{};
  while (::getrandom(chance.data(), chance.size(), 0) != static_cast<ssize_t>(chance.size())) continue;
  std::string name;
  for (const unsigned char byte : chance) name += alphabet[byte % alphabet.size()];
  return name;
}

Result<UniqueFd> create_new_file(int folder, const std::string& name, mode_t mode) {
  constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY;
  UniqueFd fd{::openat(folder, name.c_str(), flags, mode)};
  if (!fd) return system_error("");
  return fd;
}

Result<UniqueFd> open_named_file(const std::string& path, int flags, mode_t mode) {
  auto place = place_of(path);
  if (!place) return place.error();
  return open_in_place(*place, path, flags, mode);
}

Result<> overwrite_file_now(const std::string& path, const std::string& content) {
  const auto file = open_named_file(path, O_CREAT | O_TRUNC, 0666);
  if (!file) return file.error();
  std::string_view rest = content;
  if (const int error = write_all(file->get(), rest); error != 0) return system_error(error, path);
  return {};
}

Result<> replace_file_now(const std::string& path, const std::string& content) {
  auto place = place_of(path);
  if (!place) return place.error();
  const int folder = place->folder.get();
  std::string_view rest = content;
  struct stat status {};
  const bool known = trusted(*place) && ::fstatat(folder, place->name.c_str(), &status, 0) == 0;
  // /dev/stdout may lead to a file of which it is not ours to make another.
  const bool device = path.starts_with("/dev/") || path.starts_with("/proc/");
  if (known && (device || !S_ISREG(status.st_mode))) {
    const auto direct = open_in_place(*place, path, O_APPEND, 0);
    if (!direct) return direct.error();
    if (const int error = write_all(direct->get(), rest); error != 0) return system_error(error, path);
    return {};
  }
  const std::string beside = "." + place->name + "." + random_name();
  const auto made = create_new_file(folder, beside, 0666);
  if (!made) return system_error(made.error().code.value(), path);
  int error = write_all(made->get(), rest);
  if (error == 0 && ::fsync(made->get()) != 0) error = errno;
  if (error == 0 && ::renameat(folder, beside.c_str(), folder, place->name.c_str()) != 0) error = errno;
  if (error == 0) return {};
  ::unlinkat(folder, beside.c_str(), 0);
  return system_error(error, path);
}

}  // namespace torchup
