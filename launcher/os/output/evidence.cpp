#include "launcher/os/output/evidence.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string_view>
#include <utility>

#include "launcher/core/machine/cgroup_paths.hpp"
#include "launcher/os/io/read_text.hpp"
#include "launcher/os/machine/process_stat.hpp"

namespace torchup {
namespace {

constexpr std::size_t kernel_lines_max = 20;
constexpr int kernel_records_max = 20'000;

std::optional<std::int64_t> parse_number(std::string_view text) {
  std::int64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc{} ? std::optional{number} : std::nullopt;
}

/// The value of a line `<key> <value>`.
std::optional<std::int64_t> keyed_number(const std::string& text, std::string_view key) {
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view{text}.substr(at, end - at);
    if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == ' ')
      return parse_number(line.substr(key.size() + 1));
    at = end + 1;
  }
  return std::nullopt;
}

std::optional<CgroupFolder> memory_cgroup() {
  return cgroup_folder("memory", read_text("/proc/self/cgroup"), read_text("/proc/self/mountinfo"));
}

std::optional<std::int64_t> cgroup_oom_kills(const std::optional<CgroupFolder>& cgroup) {
  if (!cgroup) return std::nullopt;
  const char* file = cgroup->version == 1 ? "/memory.oom_control" : "/memory.events";
  return keyed_number(read_text(cgroup->folder + file), "oom_kill");
}

std::optional<std::int64_t> machine_oom_kills() { return keyed_number(read_text("/proc/vmstat"), "oom_kill"); }

/// The least limit of our cgroup and those above it.
std::optional<std::int64_t> memory_limit(const CgroupFolder& cgroup) {
  constexpr std::int64_t no_limit = std::int64_t{1} << 60;  // version 1 says "none" with a number near 2^63
  std::optional<std::int64_t> least;
  const char* file = cgroup.version == 1 ? "memory.limit_in_bytes" : "memory.max";
  for (std::filesystem::path folder = cgroup.folder;; folder = folder.parent_path()) {
    const auto limit = parse_number(read_text(folder / file));
    if (limit && *limit < no_limit) least = std::min(least.value_or(*limit), *limit);
    if (folder == cgroup.mount || folder == folder.parent_path()) return least;
  }
}

std::optional<std::int64_t> difference(std::optional<std::int64_t> before, std::optional<std::int64_t> after) {
  if (!before || !after) return std::nullopt;
  return *after - *before;
}

/// `text` names this process: its number stands alone behind `[`, `pid=`, `pid ` or `process `.
bool names_process(std::string_view text, pid_t pid) {
  const std::string number = std::to_string(pid);
  for (auto at = text.find(number); at != std::string_view::npos; at = text.find(number, at + 1)) {
    const std::string_view before = text.substr(0, at);
    const std::string_view after = text.substr(at + number.size());
    const bool ends = after.empty() || after[0] < '0' || after[0] > '9';
    for (const std::string_view word : {"[", "pid=", "pid ", "rocess ", "task="})
      if (ends && before.ends_with(word)) return true;
  }
  return false;
}

/// A reader of the kernel's log that stands at its end; none: we may not read it.
UniqueFd end_of_kernel_log() {
  UniqueFd log{::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  if (log && ::lseek(log.get(), 0, SEEK_END) < 0) return {};
  return log;
}

/// `priority,sequence,microseconds,flags;text`
std::optional<std::int64_t> sequence_number(std::string_view record) {
  const auto begin = record.find(',');
  if (begin == std::string_view::npos) return std::nullopt;
  record.remove_prefix(begin + 1);
  return parse_number(record.substr(0, record.find(',')));
}

/// Lines of the kernel's log, from where `log` stands on, that are about this process or about a GPU. Ends before the
/// record whose sequence number `is_behind` takes.
std::vector<std::string> kernel_lines(pid_t pid, const UniqueFd& log,
                                      const std::function<bool(std::int64_t)>& is_behind) {
  std::vector<std::string> lines;
  if (!log) return lines;
  std::array<char, 8192> record{};
  for (int count = 0; count < kernel_records_max && lines.size() < kernel_lines_max; ++count) {
    const ssize_t size = ::read(log.get(), record.data(), record.size());
    if (size < 0 && errno == EPIPE) continue;  // overwritten before we came
    if (size <= 0) break;
    const std::string_view text{record.data(), static_cast<std::size_t>(size)};
    const auto body = text.find(';');
    if (body == std::string_view::npos) continue;
    std::string_view line = text.substr(body + 1);
    line = line.substr(0, line.find('\n'));
    if (!names_process(line, pid) && line.find("NVRM: Xid") == std::string_view::npos) continue;
    const auto number = sequence_number(text);
    if (!number || is_behind(*number)) break;
    lines.emplace_back(line);
  }
  return lines;
}

/// Where the kernel leaves a core of `pid`, when it does.
std::string core_file(pid_t pid) {
  std::string pattern = read_text("/proc/sys/kernel/core_pattern");
  while (!pattern.empty() && pattern.back() == '\n') pattern.pop_back();
  if (pattern.empty()) return "";
  if (pattern.front() == '|') return "passed to " + pattern.substr(1, pattern.find(' ') - 1);
  std::string path;
  bool has_pid = false;
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] != '%' || at + 1 == pattern.size()) {
      path += pattern[at];
      continue;
    }
    switch (pattern[++at]) {
      case 'p':
      case 'P':
        path += std::to_string(pid);
        has_pid = true;
        break;
      case '%':
        path += '%';
        break;
      default:
        path += '*';
        break;  // the program's name, the time, …
    }
  }
  if (!has_pid && read_text("/proc/sys/kernel/core_uses_pid").starts_with('1')) path += "." + std::to_string(pid);
  // The worker's directory is ours unless it has changed it; a pattern with unknown parts is compared by its beginning.
  std::error_code error;
  std::filesystem::path wanted = path;
  if (wanted.is_relative()) wanted = std::filesystem::current_path(error) / wanted;
  const std::string name = wanted.filename().string();
  const auto star = name.find('*');
  if (star == std::string::npos) return std::filesystem::exists(wanted, error) ? wanted.string() : "";
  const std::string number = std::to_string(pid);
  for (std::filesystem::directory_iterator at{wanted.parent_path(), error}, end; !error && at != end;
       at.increment(error)) {
    const std::string found = at->path().filename().string();
    if (found.starts_with(name.substr(0, star)) && found.find(number) != std::string::npos) return at->path().string();
  }
  return "";
}

}  // namespace

DeathBaseline::DeathBaseline() : kernel_log_{end_of_kernel_log()} {}

void DeathBaseline::next_attempt() {
  const std::lock_guard lock{mutex_};
  next_attempt_ = end_of_kernel_log();
}

bool DeathBaseline::is_next_attempt_s(std::int64_t number) {
  const std::lock_guard lock{mutex_};
  if (!next_attempt_s_first_ && next_attempt_) {
    std::array<char, 8192> record{};
    ssize_t size = 0;
    do size = ::read(next_attempt_.get(), record.data(), record.size());
    while (size < 0 && errno == EPIPE);
    if (size > 0) next_attempt_s_first_ = sequence_number({record.data(), static_cast<std::size_t>(size)});
  }
  return next_attempt_s_first_ && number >= *next_attempt_s_first_;
}

void DeathBaseline::count() {
  oom_kills_ = cgroup_oom_kills(memory_cgroup());
  machine_oom_kills_ = machine_oom_kills();
}

DeathEvidence DeathBaseline::collect(pid_t pid, int exit_code) {
  DeathEvidence evidence;
  const auto cgroup = memory_cgroup();
  evidence.oom_kills = difference(oom_kills_, cgroup_oom_kills(cgroup));
  evidence.machine_oom_kills = difference(machine_oom_kills_, machine_oom_kills());
  if (cgroup) {
    evidence.memory_limit_bytes = memory_limit(*cgroup);
    const char* peak = cgroup->version == 1 ? "/memory.max_usage_in_bytes" : "/memory.peak";
    evidence.memory_peak_bytes = parse_number(read_text(cgroup->folder + peak));
  }
  evidence.kernel_lines =
      kernel_lines(pid, std::exchange(kernel_log_, {}), [this](auto number) { return is_next_attempt_s(number); });
  if (exit_code < 0) evidence.core_file = core_file(pid);
  return evidence;
}

Result<std::optional<std::string>> read_error_file(const std::string& path) {
  const auto failed = [&] { return system_error(path); };
  const std::filesystem::path whole{path};
  const UniqueFd folder{::open(whole.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!folder && errno == ENOENT) return std::optional<std::string>{};
  if (!folder) return failed();
  // Never wait for a FIFO, never follow a link that a worker has laid.
  const UniqueFd file{
      ::openat(folder.get(), whole.filename().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY)};
  if (!file && errno == ENOENT) return std::optional<std::string>{};
  if (!file && errno == ELOOP) return fail(errc::refused, path + ": a symbolic link is not followed");
  if (!file) return failed();
  struct stat status {};
  struct stat around {};
  if (::fstat(file.get(), &status) != 0 || ::fstat(folder.get(), &around) != 0) return failed();
  // A file server may have another user for root: what it gave the folder to, which we made, is ours too.
  const bool ours = status.st_uid == ::geteuid() || status.st_uid == around.st_uid;
  if (!S_ISREG(status.st_mode) || !ours) return fail(errc::refused, path + ": not a regular file of ours");
  std::string bytes;
  std::array<char, 16 * 1024> buffer{};
  for (;;) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno != EINTR) return failed();
    if (count == 0) return std::optional{std::move(bytes)};
    if (count > 0) bytes.append(buffer.data(), static_cast<std::size_t>(count));
    if (bytes.size() > error_file_bytes_max)
      return fail(errc::limit_exceeded, fmt::format("{}: longer than {} bytes", path, error_file_bytes_max));
  }
}

LastWords read_last_words(const std::string& path) {
  auto bytes = read_error_file(path);
  if (bytes && !*bytes) return {};
  auto error = bytes ? parse_error_file(**bytes) : Result<WorkerError>{bytes.error()};
  if (!error) return {.problem = error.error().message()};
  return {.bytes = std::move(**bytes), .error = *std::move(error)};
}

std::string process_state(pid_t pid) {
  const auto stat = process_stat(pid);
  if (!stat) return "gone";
  std::string place = read_text(fmt::format("/proc/{}/wchan", pid));
  if (place == "0") place.clear();
  const std::string in = place.empty() ? "" : " in " + place;
  switch (stat->state) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping" + in;
    case 'D':
      return "uninterruptible" + in;
    case 'T':
      return "stopped";
    case 't':
      return "stopped by a debugger";
    case 'I':
      return "idle";
    default:
      return "gone";  // a zombie, not yet reaped
  }
}

std::string local_time_text(std::int64_t utc_us) {
  const std::time_t seconds = utc_us / 1'000'000;
  std::tm local{};
  ::localtime_r(&seconds, &local);
  std::array<char, 64> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%d_%H:%M:%S", &local);
  return {text.data(), size};
}

}  // namespace torchup
