#include "launcher/os/output/circumstances.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <set>

#include "launcher/core/text/text.hpp"
#include "launcher/os/io/read_text.hpp"

namespace torchup {
namespace {

constexpr std::uint64_t mebibyte = 1 << 20;
constexpr std::uint64_t hardly_any_bytes = 16 * mebibyte;
constexpr const char* shared_memory_folder = "/dev/shm";
constexpr std::string_view listening = "0A";
constexpr std::size_t command_bytes_max = 120;

// ---- File systems.

std::optional<struct statvfs> space(const std::string& path) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) return std::nullopt;
  return status;
}

std::string space_text(const struct statvfs& status) {
  std::string text = fmt::format("{} of {} MiB are free", status.f_bavail * status.f_frsize / mebibyte,
                                 status.f_blocks * status.f_frsize / mebibyte);
  if (status.f_files != 0 && status.f_favail == 0) text += ", and no more files can be made (inodes)";
  return text;
}

bool is_full(const struct statvfs& status) {
  const std::uint64_t all = status.f_blocks * status.f_frsize;
  return status.f_bavail * status.f_frsize < std::min(hardly_any_bytes, all / 50) ||
         (status.f_files != 0 && status.f_favail == 0);
}

/// Python names the file of an OSError: `[Errno 28] No space left on device: '/mnt/data/ckpt.pt'`.
std::string path_in(std::string_view said) {
  const auto begin = said.find("'/");
  const auto end = begin == std::string_view::npos ? begin : said.find('\'', begin + 1);
  if (end == std::string_view::npos) return "";
  return std::filesystem::path{said.substr(begin + 1, end - begin - 1)}.parent_path().string();
}

std::vector<std::string> full_file_systems(std::string_view said) {
  std::error_code error;
  std::vector<std::string> folders{path_in(said), std::filesystem::current_path(error).string()};
  for (const char* const name : {"TMPDIR", "HOME"}) {
    if (const char* const value = std::getenv(name)) folders.emplace_back(value);
  }
  folders.insert(folders.end(), {"/tmp", "/var/tmp", shared_memory_folder});
  std::vector<std::string> findings;
  std::set<unsigned long> told;
  for (const std::string& folder : folders) {
    const auto status = folder.empty() ? std::nullopt : space(folder);
    if (status && is_full(*status) && told.insert(status->f_fsid).second)
      findings.push_back(fmt::format("the file system of {} is full: {}", folder, space_text(*status)));
  }
  return findings;
}

// ---- Ports.

std::optional<int> number_behind(std::string_view text, std::string_view mark) {
  for (auto at = text.find(mark); at != std::string_view::npos; at = text.find(mark, at + 1)) {
    const std::string_view rest = text.substr(at + mark.size());
    int number = 0;
    const auto [end, code] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    const bool whole = end == rest.data() + rest.size() || *end < '0' || *end > '9';
    if (code == std::errc{} && whole && number > 0 && number <= 65'535) return number;
  }
  return std::nullopt;
}

/// torch: `port: 29500, useIpv6: …`; asio and others: `bind: Address already in use: 0.0.0.0:8000`.
std::optional<int> port_in(std::string_view said) {
  for (const std::string_view mark : {"port: ", "port ", "port=", "]:", "0:", "1:", ", "}) {
    if (const auto port = number_behind(said, mark)) return port;
  }
  return std::nullopt;
}

/// The socket that listens on `port`, as it stands behind a descriptor: `socket:[4711]`.
std::string listener_of(int port) {
  for (const char* const file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (const std::string& line : lines_of(read_text(file))) {
      std::vector<std::string_view> words;
      for (const std::string_view word : split(line, ' '))
        if (!word.empty()) words.push_back(word);
      if (words.size() < 10 || words[3] != listening) continue;
      const auto colon = words[1].rfind(':');
      int local = 0;
      std::from_chars(words[1].data() + colon + 1, words[1].data() + words[1].size(), local, 16);
      if (local == port) return fmt::format("socket:[{}]", words[9]);
    }
  }
  return "";
}

std::string command_of(const std::string& pid) {
  std::string command = read_text("/proc/" + pid + "/cmdline", command_bytes_max);
  std::ranges::replace(command, '\0', ' ');
  command = printable_lines(stripped(command));
  std::ranges::replace(command, '\n', ' ');
  return command;
}

/// The pid of one that has this descriptor open; empty: nobody whom we may look at.
std::string holder_of(const std::string& target) {
  std::error_code error;
  for (std::filesystem::directory_iterator process{"/proc", error}, end; !error && process != end;
       process.increment(error)) {
    const std::string pid = process->path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code unseen;
    for (std::filesystem::directory_iterator file{process->path() / "fd", unseen}; !unseen && file != end;
         file.increment(unseen)) {
      std::error_code gone;
      if (std::filesystem::read_symlink(file->path(), gone) == target) return pid;
    }
  }
  return "";
}

std::string process_text(const std::string& pid) { return fmt::format("pid {} ({})", pid, command_of(pid)); }

std::vector<std::string> port_holder(std::string_view said) {
  const auto port = port_in(said);
  if (!port) return {};
  const std::string socket = listener_of(*port);
  if (socket.empty()) return {fmt::format("port {}: nobody listens on it by now", *port)};
  const std::string pid = holder_of(socket);
  if (pid.empty())
    return {fmt::format("port {}: another user's process, or another container's, listens on it", *port)};
  return {fmt::format("port {}: {} listens on it", *port, process_text(pid))};
}

// ---- Limits.

std::vector<std::string> limit(int resource, std::string_view what, std::string_view option) {
  rlimit bounds{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &bounds) != 0 || bounds.rlim_cur == RLIM_INFINITY)
    return {};
  return {fmt::format("limit of {}: {} (ulimit -{}){}", what, bounds.rlim_cur, option,
                      bounds.rlim_max == RLIM_INFINITY ? "" : fmt::format(", at most {}", bounds.rlim_max))};
}

std::vector<std::string> shared_memory() {
  const auto status = space(shared_memory_folder);
  return status ? std::vector{fmt::format("{}: {}", shared_memory_folder, space_text(*status))}
                : std::vector<std::string>{};
}

}  // namespace

std::string listener_on(Port port) {
  const std::string socket = listener_of(port.value());
  const std::string pid = socket.empty() ? "" : holder_of(socket);
  return pid.empty() ? "" : process_text(pid);
}

std::vector<std::string> find_circumstances(CauseKind kind, std::string_view said) {
  switch (kind) {
    case CauseKind::disk_full:
      return full_file_systems(said);
    case CauseKind::port_taken:
      return port_holder(said);
    case CauseKind::descriptors:
      return limit(RLIMIT_NOFILE, "open files", "n");
    case CauseKind::processes:
      return limit(RLIMIT_NPROC, "processes and threads of this user", "u");
    case CauseKind::shared_memory:
    case CauseKind::loader_killed:
      return shared_memory();
    default:
      return {};
  }
}

}  // namespace torchup
