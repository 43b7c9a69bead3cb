#include "launcher/os/run_directory.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "rendezvous/net/unique_fd.hpp"

namespace torchup {
namespace {

/// A run id is anything; a directory's name is not.
std::string as_file_name(std::string_view text) {
  constexpr std::size_t length_max = 100;
  std::string name;
  for (const char c : text.substr(0, length_max)) {
    const bool plain = static_cast<unsigned char>(c) > ' ' && c != '/' && c != 0x7F;
    name += plain && !(name.empty() && c == '.') ? c : '_';
  }
  return name;
}

bool is_in_memory(const char* directory) {
  struct statfs system {};
  return ::statfs(directory, &system) == 0 && system.f_type == TMPFS_MAGIC;
}

/// A directory `<prefix><8 random characters of a-z0-9_>`, mode 0700. Errors: the system's, with the path.
Result<std::string> make_unique_directory(const std::string& prefix) {
  constexpr std::string_view alphabet = "abcdefghijklmnopqrstuvwxyz0123456789_";
  constexpr int tries = 100;
  for (int attempt = 0; attempt < tries; ++attempt) {
    std::array<unsigned char, 8> chance{};
    if (::getrandom(chance.data(), chance.size(), 0) != static_cast<ssize_t>(chance.size())) continue;
    std::string path = prefix;
    for (const unsigned char byte : chance) path += alphabet[byte % alphabet.size()];
    if (::mkdir(path.c_str(), 0700) == 0) return path;
    if (errno != EEXIST) return system_error(errno, path);
  }
  return system_error(EEXIST, prefix);
}

Result<RunDirectory> make_temporary_directory(const std::filesystem::path& parent, bool for_logs) {
  constexpr auto memory = "/dev/shm";
  const std::string name = "/torchelastic_";
  if (!for_logs && is_in_memory(memory) && !is_in_memory(parent.c_str())) {
    if (auto made = make_unique_directory(memory + name)) {
      const std::string link = parent.string() + made->substr(std::strlen(memory));
      if (::symlink(made->c_str(), link.c_str()) == 0) return RunDirectory{"", {link}, *made};
      ::rmdir(made->c_str());
    }
  }
  auto made = make_unique_directory(parent.string() + name);
  if (!made) return made.error();
  return RunDirectory{"", {*made}, ""};
}

/// As far as no file in them has any bytes. Each stands before those below it.
void remove_if_empty(const std::vector<std::string>& directories) {
  namespace fs = std::filesystem;
  // Those of many workers lie side by side: their way is walked once.
  fs::path parent;
  UniqueFd folder;
  for (auto directory = directories.rbegin(); directory != directories.rend(); ++directory) {
    const fs::path path{*directory};
    if (path.parent_path() != parent) {
      parent = path.parent_path();
      folder.reset(::open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    }
    if (::unlinkat(folder.get(), path.filename().c_str(), AT_REMOVEDIR) == 0) continue;
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator{*directory, error}) {
      const bool empty_file = fs::is_regular_file(entry.symlink_status(error)) && entry.file_size(error) == 0;
      if (empty_file && !error) fs::remove(entry.path(), error);
    }
    ::rmdir(directory->c_str());
  }
}

}  // namespace

Result<RunDirectory> make_run_directory(std::string log_dir, const std::string& run_id, bool for_logs) {
  RunDirectory made;
  std::error_code error;
  const auto failed = [&error](std::string context) { return system_error(error.value(), std::move(context)); };
  if (log_dir.empty()) {
    const auto temporary = std::filesystem::temp_directory_path(error);
    if (error) return failed("TMPDIR");
    auto unique = make_temporary_directory(temporary, for_logs);
    if (!unique) return unique.error();
    made = *std::move(unique);
    log_dir = made.temporary.front();
  } else {
    if (std::filesystem::is_regular_file(log_dir, error))
      return Error{make_error_code(boost::system::errc::not_a_directory), "log_dir: " + log_dir + " is a file"};
    std::filesystem::create_directories(log_dir, error);
    if (error) return failed(log_dir);
  }
  auto unique = make_unique_directory(log_dir + "/" + as_file_name(run_id) + "_");
  if (!unique) return unique.error();
  made.path = *unique;
  if (!made.temporary.empty()) made.temporary.push_back(made.path);
  return made;
}

Result<> make_directories(const std::vector<std::string>& directories) {
  const std::string& first = directories.front();
  UniqueFd folder;
  for (const std::string& directory : directories) {
    const char* const name = folder ? directory.c_str() + first.size() + 1 : first.c_str();
    if (::mkdirat(folder ? folder.get() : AT_FDCWD, name, 0777) != 0) return system_error(directory);
    if (!folder) folder.reset(::open(first.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!folder) return system_error(first);
  }
  return {};
}

void remove_temporary(RunDirectory run) {
  namespace fs = std::filesystem;
  if (run.in_memory.empty()) return remove_if_empty(run.temporary);
  const std::string link = std::exchange(run.temporary.front(), run.in_memory);
  remove_if_empty(run.temporary);
  std::error_code error, ignored;
  if (!fs::exists(run.in_memory, error)) {
    ::unlink(link.c_str());
    return;
  }
  const std::string on_disk = link + ".disk";
  fs::copy(run.in_memory, on_disk, fs::copy_options::recursive, error);
  if (error) {  // a full disk: the link stays, and what it leads to
    fs::remove_all(on_disk, ignored);
    return;
  }
  ::unlink(link.c_str());
  fs::rename(on_disk, link, error);
  if (!error) fs::remove_all(run.in_memory, ignored);
}

}  // namespace torchup
