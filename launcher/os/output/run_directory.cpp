#include "launcher/os/output/run_directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/core/text/text.hpp"
#include "launcher/os/io/named_file.hpp"
#include "launcher/os/io/read_text.hpp"
#include "launcher/os/machine/process_stat.hpp"

namespace torchup {
namespace {

namespace fs = std::filesystem;

constexpr auto shared_memory = "/dev/shm";
constexpr std::string_view temporary_prefix = "torchelastic_";

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
  constexpr int tries = 100;
  for (int attempt = 0; attempt < tries; ++attempt) {
    std::string path = prefix + random_name();
    if (::mkdir(path.c_str(), 0700) == 0) return path;
    if (errno != EEXIST) return system_error(errno, path);
  }
  return system_error(EEXIST, prefix);
}

Result<RunDirectory> make_temporary_directory(const std::string& parent, bool for_logs) {
  const std::string path = parent + "/" + std::string{temporary_prefix} + random_name();
  if (!for_logs && is_in_memory(shared_memory)) {
    const std::string inside = std::string{shared_memory} + "/" + memory_name(path);
    if (::mkdir(inside.c_str(), 0700) == 0) {
      if (::symlink(inside.c_str(), path.c_str()) == 0)
        return RunDirectory{.path = "", .temporary = {path}, .in_memory = inside};
      ::rmdir(inside.c_str());
    }
  }
  if (::mkdir(path.c_str(), 0700) != 0) return system_error(path);
  return RunDirectory{.path = "", .temporary = {path}};
}

Result<RunDirectory> make_temporary_directory(bool for_logs) {
  std::optional<Error> first;
  for (const std::string& place : temporary_places()) {
    auto made = make_temporary_directory(place, for_logs);
    if (made) return made;
    if (!first) first = made.error();
  }
  if (for_logs) return *first;  // they grow, and memory would be full of them
  auto in_memory = make_memory_directory();
  if (!in_memory) return *first;
  return RunDirectory{.path = "", .temporary = {*std::move(in_memory)}};
}

/// As far as no file in them has any bytes. Each stands before those below it.
void remove_if_empty(const std::vector<std::string>& directories) {
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
    for (fs::directory_iterator entry{*directory, error}, end; !error && entry != end; entry.increment(error)) {
      std::error_code refused;
      const bool empty_file = fs::is_regular_file(entry->symlink_status(refused)) && entry->file_size(refused) == 0;
      if (empty_file && !refused) fs::remove(entry->path(), refused);
    }
    ::rmdir(directory->c_str());
  }
}

/// Files and folders, and nothing else that a worker may have put beside its error file: what a link leads to is not
/// ours to copy, and who opens a pipe may wait for ever. `to` is made, and nothing is at its place before: somebody
/// else may have laid a link there, for its name can be told from that in memory. After an error it is gone.
std::error_code copy_files(const fs::path& from, const fs::path& to) {
  std::error_code error, ignored;
  if (::mkdir(to.c_str(), 0700) != 0) return {errno, std::generic_category()};
  for (fs::recursive_directory_iterator at{from, error}, end; !error && at != end; at.increment(error)) {
    const fs::path target = to / at->path().lexically_relative(from);
    const fs::file_status status = at->symlink_status(error);
    if (fs::is_directory(status)) fs::create_directory(target, error);
    if (fs::is_regular_file(status)) fs::copy_file(at->path(), target, error);
    if (error) break;
  }
  if (error) fs::remove_all(to, ignored);
  return error;
}

Result<> open_folder(RunDirectory& run) {
  auto folder = std::make_shared<UniqueFd>(::open(run.path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!*folder) return system_error(run.path);
  run.folder = std::move(folder);
  return {};
}

/// Tells this kernel since its start, and this namespace of process numbers, from all others.
const std::string& place_of_processes() {
  static const std::string place = [] {
    std::string name = read_text("/proc/sys/kernel/random/boot_id");
    struct stat status {};
    if (::stat("/proc/self/ns/pid", &status) == 0) name += fmt::format("{}", status.st_ino);
    return fmt::format("{:08x}", std::hash<std::string>{}(name)&0xFFFFFFFFU);
  }();
  return place;
}

/// The names in `folder` of what may be ours and is of that type (DT_…), among the first names_looked_at_max. A path or
/// a system call for each would take a good part of a short job's time.
std::vector<std::string> temporary_names(const std::string& folder, unsigned char type) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> open{::opendir(folder.c_str()), ::closedir};
  for (int looked_at = 0; open && looked_at < names_looked_at_max; ++looked_at) {
    const dirent* const entry = ::readdir(open.get());
    if (!entry) break;
    const bool may_be = entry->d_type == type || entry->d_type == DT_UNKNOWN;
    if (may_be && std::string_view{entry->d_name}.starts_with(temporary_prefix)) names.emplace_back(entry->d_name);
  }
  return names;
}

/// Tells a process from later ones of its number; empty when there is none, or only its exit code.
std::string start_time(std::string_view pid) {
  pid_t number = 0;
  std::from_chars(pid.data(), pid.data() + pid.size(), number);
  const auto stat = process_stat(number);
  return !stat || stat->state == 'Z' || stat->state == 'X' ? "" : fmt::format("{}", stat->start_time);
}

/// What a launcher that is gone has left at `path`, as its own RunDirectory would say; `link` led to it.
RunDirectory left_behind(const std::string& path, std::string link) {
  RunDirectory run;
  run.in_memory = path;
  run.temporary.push_back(std::move(link));
  std::error_code error;
  for (fs::recursive_directory_iterator at{path, error}, end; !error && at != end; at.increment(error))
    if (fs::is_directory(at->symlink_status(error))) run.temporary.push_back(at->path().string());
  return run;
}

}  // namespace

std::vector<std::string> temporary_places() {
  std::vector<std::string> places;
  std::error_code error;
  for (const char* variable : {"TMPDIR", "TEMP", "TMP"})
    if (const char* value = std::getenv(variable); value != nullptr && *value != '\0')
      if (const auto place = fs::absolute(value, error); !error) places.push_back(place.string());
  places.insert(places.end(), {"/tmp", "/var/tmp", "/usr/tmp"});
  if (const auto here = fs::current_path(error); !error) places.push_back(here.string());
  return places;
}

std::string memory_name(const std::string& link) {
  const std::string pid = fmt::format("{}", ::getpid());
  const std::string random = link.substr(link.size() - random_name_length);
  return fmt::format("{}{}_{}_{}_{}", temporary_prefix, place_of_processes(), pid, start_time(pid), random);
}

bool launcher_is_gone(const std::string& name) {
  if (!name.starts_with(temporary_prefix)) return false;
  const auto parts = split(std::string_view{name}.substr(temporary_prefix.size()), '_');
  constexpr std::size_t place = 0, pid = 1, start = 2, parts_min = 4;
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  if (parts.size() < parts_min || !is_number(parts[pid]) || !is_number(parts[start])) return false;
  return parts[place] == place_of_processes() && start_time(parts[pid]) != parts[start];
}

Result<std::string> make_memory_directory() {
  if (!is_in_memory(shared_memory)) return fail(errc::refused, fmt::format("{} is not in memory", shared_memory));
  std::string path = fmt::format("{}/{}", shared_memory, memory_name(random_name()));
  if (::mkdir(path.c_str(), 0700) != 0) return system_error(path);
  return path;
}

Result<RunDirectory> make_run_directory(std::string log_dir, const std::string& run_id, bool for_logs) {
  RunDirectory made;
  std::error_code error;
  const auto failed = [&error](std::string context) { return system_error(error.value(), std::move(context)); };
  if (log_dir.empty()) {
    auto unique = make_temporary_directory(for_logs);
    if (!unique) return unique.error();
    made = *std::move(unique);
    log_dir = made.temporary.front();
  } else {
    if (fs::is_regular_file(log_dir, error))
      return Error{make_error_code(boost::system::errc::not_a_directory), "log_dir: " + log_dir + " is a file"};
    fs::create_directories(log_dir, error);
    if (error) return failed(log_dir);
  }
  auto unique = make_unique_directory(log_dir + "/" + as_file_name(run_id) + "_");
  if (!unique) return unique.error();
  made.path = *unique;
  if (!made.temporary.empty()) made.temporary.push_back(made.path);
  if (auto opened = open_folder(made); !opened) return opened.error();
  return made;
}

Result<RunDirectory> make_directories(RunDirectory run, const std::vector<std::string>& names) {
  bool made_anew = false;
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (::mkdirat(run.folder->get(), name->c_str(), 0700) == 0) continue;
    if (errno != ENOENT || made_anew || name != names.begin()) return system_error(run.path + "/" + *name);
    made_anew = true;
    std::error_code error;
    fs::create_directories(fs::path{run.path}.parent_path(), error);
    if (::mkdir(run.path.c_str(), 0700) != 0) return system_error(run.path);
    if (auto opened = open_folder(run); !opened) return opened.error();
    if (::mkdirat(run.folder->get(), name->c_str(), 0700) != 0) return system_error(run.path + "/" + *name);
  }
  return run;
}

void remove_temporary(RunDirectory run) {
  if (run.in_memory.empty()) return remove_if_empty(run.temporary);
  const std::string link = std::exchange(run.temporary.front(), run.in_memory);
  remove_if_empty(run.temporary);
  std::error_code error, ignored;
  if (!fs::exists(run.in_memory, error)) {
    ::unlink(link.c_str());
    return;
  }
  const std::string on_disk = link + ".disk";
  if (copy_files(run.in_memory, on_disk)) return;  // a full disk: the link stays, and what it leads to
  ::unlink(link.c_str());
  fs::rename(on_disk, link, error);
  if (!error) fs::remove_all(run.in_memory, ignored);
}

void remove_left_behind(const std::string& own_link) {
  const std::vector<std::string> places = temporary_places();
  int looked_at = 0;
  std::error_code ignored;
  for (const std::string& name : temporary_names(shared_memory, DT_DIR)) {
    const std::string path = fmt::format("{}/{}", shared_memory, name);
    struct stat status {};
    if (!launcher_is_gone(name) || ++looked_at > left_behind_max) continue;
    if (::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != ::geteuid()) continue;
    fs::remove_all(path + "/" + hook_folder_name, ignored);
    const std::string link = std::string{temporary_prefix} + name.substr(name.size() - random_name_length);
    std::string place = "/tmp";
    for (const std::string& each : places)
      if (fs::read_symlink(each + "/" + link, ignored) == path) place = each;
    remove_temporary(left_behind(path, place + "/" + link));
  }
  // Somebody with another TMPDIR has been faster, and did not know of the link.
  const std::string place = fs::path{own_link}.parent_path();
  for (const std::string& name : temporary_names(place, DT_LNK)) {
    const std::string path = fmt::format("{}/{}", place, name);
    const fs::path target = fs::read_symlink(path, ignored);  // empty: it is no link
    const bool left = target.parent_path() == shared_memory && launcher_is_gone(target.filename().string());
    if (left && !fs::exists(target, ignored)) ::unlink(path.c_str());
  }
}

}  // namespace torchup
