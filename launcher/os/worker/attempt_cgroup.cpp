#include "launcher/os/worker/attempt_cgroup.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "launcher/core/machine/cgroup_paths.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {
namespace {

/// How long killed processes may take to leave their cgroup before it is given up.
constexpr Duration removal_limit = std::chrono::seconds{1};
constexpr auto removal_pause = std::chrono::milliseconds{1};

/// All of a file of the kernel's, whose size stat does not know.
std::string read_kernel_file(int folder, const char* name) {
  std::string text;
  const UniqueFd file{::openat(folder, name, O_RDONLY | O_CLOEXEC)};
  std::array<char, 4096> buffer{};
  while (file) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

/// systemd marks what it has handed over. A part below is handed over with the whole.
bool marked_as_delegated(const CgroupFolder& cgroup) {
  for (std::filesystem::path folder = cgroup.folder; folder != cgroup.mount; folder = folder.parent_path()) {
    for (const char* mark : {"user.delegate", "trusted.delegate"}) {
      char value = 0;
      if (::getxattr(folder.c_str(), mark, &value, 1) == 1 && value == '1') return true;
    }
    if (folder == folder.parent_path()) break;
  }
  return false;
}

/// Our own cgroup, if its inside is ours to arrange.
std::optional<std::string> delegated_cgroup() {
  const auto own = cgroup_folder("", read_kernel_file(AT_FDCWD, "/proc/self/cgroup"),
                                 read_kernel_file(AT_FDCWD, "/proc/self/mountinfo"));
  if (!own || ::access((own->folder + "/cgroup.procs").c_str(), W_OK) != 0) return std::nullopt;
  const bool systemds = ::geteuid() == 0 && ::access("/run/systemd/system", F_OK) == 0;
  if (systemds && !marked_as_delegated(*own)) return std::nullopt;
  return own->folder;
}

void kill_all_in(int folder) {
  const UniqueFd kill{::openat(folder, "cgroup.kill", O_WRONLY | O_CLOEXEC)};
  if (kill) static_cast<void>(!::write(kill.get(), "1", 1));
}

std::vector<std::string> folders_in(const std::string& path) {
  std::vector<std::string> names;
  DIR* const folder = ::opendir(path.c_str());
  if (!folder) return names;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string_view name = entry->d_name;
    if (entry->d_type == DT_DIR && name != "." && name != "..") names.emplace_back(name);
  }
  ::closedir(folder);
  return names;
}

/// A cgroup goes when nobody lives in it and nothing is below.
bool remove_tree(const std::string& path) {
  if (::rmdir(path.c_str()) == 0 || errno == ENOENT) return true;
  for (const std::string& name : folders_in(path)) static_cast<void>(remove_tree(path + "/" + name));
  return ::rmdir(path.c_str()) == 0;
}

void end_and_remove(const std::string& path) {
  if (remove_tree(path)) return;
  const auto end = std::chrono::steady_clock::now() + removal_limit;
  do {
    const UniqueFd folder{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (folder) kill_all_in(folder.get());
    std::this_thread::sleep_for(removal_pause);
  } while (!remove_tree(path) && std::chrono::steady_clock::now() < end);
}

/// Whether a job lives whose cgroup this is. It may have a PID namespace of its own, in which its number is another:
/// its lock is seen all the same.
bool is_held(const std::string& path) {
  const UniqueFd folder{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  return folder && ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0;
}

/// Folders that both processes of a job left behind because they were killed in one instant.
void remove_forgotten(const std::string& parent) {
  for (const std::string& name : folders_in(parent)) {
    int pid = 0;
    if (std::sscanf(name.c_str(), "torchup.%d.", &pid) != 1 || pid <= 0) continue;
    const std::string path = parent + "/" + name;
    if (::kill(pid, 0) != 0 && errno == ESRCH && !is_held(path)) static_cast<void>(remove_tree(path));
  }
}

}  // namespace

std::unique_ptr<AttemptCgroup> AttemptCgroup::make(const std::string& tag, int number) {
  const auto parent = delegated_cgroup();
  if (!parent) return nullptr;
  remove_forgotten(*parent);
  std::string path = *parent + "/" + tag + "." + std::to_string(number);
  if (::mkdir(path.c_str(), 0755) != 0) return nullptr;
  std::unique_ptr<AttemptCgroup> cgroup{new AttemptCgroup{std::move(path)}};
  if (!cgroup->folder_ || ::faccessat(cgroup->folder(), "cgroup.kill", W_OK, 0) != 0) return nullptr;
  return cgroup;
}

/// Held for as long as we live: the lock goes with the descriptor.
AttemptCgroup::AttemptCgroup(std::string path)
    : path_{std::move(path)}, folder_{::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)} {
  if (folder_) static_cast<void>(::flock(folder_.get(), LOCK_SH | LOCK_NB));
}

AttemptCgroup::~AttemptCgroup() { static_cast<void>(remove()); }

bool AttemptCgroup::remove() {
  if (!removed_) removed_ = remove_tree(path_);
  return removed_;
}

void AttemptCgroup::remove_waiting() {
  end_and_remove(path_);
  removed_ = true;
}

bool AttemptCgroup::empty() const {
  return read_kernel_file(folder(), "cgroup.events").find("populated 1") == std::string::npos;
}

void AttemptCgroup::kill() const { kill_all_in(folder()); }

std::string cgroup_tag() {
  std::array<char, 64> text{};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::snprintf(text.data(), text.size(), "torchup.%d.%llx", ::getpid(),
                static_cast<unsigned long long>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()));
  return text.data();
}

void remove_attempt_cgroups(const std::string& tag) {
  const auto parent = delegated_cgroup();
  if (!parent) return;
  for (const std::string& name : folders_in(*parent)) {
    if (name.starts_with(tag + ".")) end_and_remove(*parent + "/" + name);
  }
}

}  // namespace torchup
