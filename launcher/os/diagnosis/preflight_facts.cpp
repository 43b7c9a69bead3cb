#include "launcher/os/diagnosis/preflight_facts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "launcher/core/machine/cgroup_paths.hpp"
#include "launcher/core/text/text.hpp"
#include "launcher/os/io/read_text.hpp"
#include "rendezvous/core/text/wording.hpp"
#include "rendezvous/net/io/background.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

std::optional<std::int64_t> free_bytes(const char* path) {
  struct statvfs status {};
  if (::statvfs(path, &status) != 0) return std::nullopt;
  const std::uint64_t bytes = std::uint64_t{status.f_bavail} * status.f_frsize;
  return static_cast<std::int64_t>(
      std::min<std::uint64_t>(bytes, static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())));
}

std::optional<std::int64_t> soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<std::int64_t>(limit.rlim_cur);
}

/// "max" and what is no number are nothing.
std::optional<std::int64_t> number_in(const std::string& path) {
  const std::string text = read_text(path, 64);
  std::int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc{} ? std::optional{number} : std::nullopt;
}

void lower_to(std::optional<std::int64_t>& least, std::optional<std::int64_t> other) {
  if (other) least = least ? std::min(*least, *other) : *other;
}

/// The folder itself, or the nearest above it that is there.
std::string existing(std::string path) {
  while (path.size() > 1 && ::access(path.c_str(), F_OK) != 0 && errno == ENOENT) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    const auto slash = path.rfind('/');
    path = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
    if (path == ".") break;
  }
  return path;
}

/// How long 4 KiB of this file take to be on the disk. Errors: the system's.
Result<Duration> time_of_sync(int file) {
  static constexpr std::array<char, 4096> block{};
  const auto begin = std::chrono::steady_clock::now();
  if (::pwrite(file, block.data(), block.size(), 0) < 0 || ::fsync(file) != 0) return system_error("4 KiB");
  return std::chrono::steady_clock::now() - begin;
}

/// A file that nobody else sees. Where the file system has no files without a name, one with a name for a moment.
UniqueFd nameless_file(const std::string& folder) {
  UniqueFd file{::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600)};
  if (file || errno == ENOSPC || errno == EDQUOT || errno == EROFS || errno == EACCES) return file;
  std::string path = folder + "/torchup_preflight_XXXXXX";
  file = UniqueFd{::mkostemp(path.data(), O_CLOEXEC)};
  if (file) ::unlink(path.c_str());
  return file;
}

void time_syncs(const std::string& folder, DiskFacts& facts) {
  const UniqueFd file = nameless_file(folder);
  if (!file) {
    facts.problem = fmt::format("no file can be written there: {}", std::strerror(errno));
    return;
  }
  std::vector<Duration> times;
  for (int i = 0; i < fsync_tries; ++i) {
    const auto time = time_of_sync(file.get());
    if (!time) {
      facts.problem = fmt::format("no file can be written there: {}", time.error().code.message());
      return;
    }
    times.push_back(*time);
  }
  std::ranges::nth_element(times, times.begin() + fsync_tries / 2);
  facts.fsync = times[fsync_tries / 2];
}

/// A disk that is being looked at.
struct DiskLook {
  DiskFacts otherwise;            ///< what is known where it does not answer
  std::future<DiskFacts> answer;  ///< not valid(): nobody looks
};

DiskLook begin_look(DiskUse use, const std::vector<std::string>& places, bool synced,
                    const std::shared_ptr<AskedDisks>& asked) {
  DiskLook look{{.use = use, .path = places.front(), .problem = "the disk does not answer"}, {}};
  if (!asked->begin(use)) return look;
  look.answer = in_background([=] {
    DiskFacts facts = look_at_disk(use, places, synced);
    asked->end(use);
    return facts;
  });
  if (look.answer.valid()) return look;
  asked->end(use);
  look.otherwise.problem = "it cannot be looked at: the system gives no thread";
  return look;
}

DiskFacts facts_of(DiskLook look, TimePoint limit) {
  const bool known = look.answer.valid() && look.answer.wait_until(limit) == std::future_status::ready;
  return known ? look.answer.get() : std::move(look.otherwise);
}

/// The place that takes files; where none does, or there is one only, the first.
const std::string& place_for_files(const std::vector<std::string>& places) {
  if (places.size() == 1) return places.front();
  const auto place = std::ranges::find_if(places, [](const std::string& each) {
    struct stat status {};
    return ::stat(each.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && ::access(each.c_str(), W_OK | X_OK) == 0;
  });
  return place == places.end() ? places.front() : *place;
}

/// "2.15.0" of "torch-2.15.0.dist-info"; empty where it is another's.
std::string version_in(std::string_view name, std::string_view distribution) {
  constexpr std::string_view ending = ".dist-info";
  if (!name.starts_with(distribution) || !name.ends_with(ending)) return {};
  name.remove_prefix(distribution.size());
  name.remove_suffix(ending.size());
  if (name.empty() || name.front() != '-') return {};
  return std::string{name.substr(1)};
}

using VersionsFound = std::map<std::string, std::set<std::string>>;

void look_at_packages(const std::filesystem::path& folder, VersionsFound& found) {
  std::error_code error;
  int left = packages_looked_at_max;
  for (std::filesystem::directory_iterator each{folder, error}, end; !error && each != end && left-- > 0;
       each.increment(error)) {
    const std::string name = each->path().filename().string();
    if (auto version = version_in(name, "torch"); !version.empty()) found["torch"].insert(std::move(version));
    for (const char* const nccl : {"nvidia_nccl_cu11", "nvidia_nccl_cu12", "nvidia_nccl_cu13"}) {
      if (auto version = version_in(name, nccl); !version.empty()) found["NCCL"].insert(std::move(version));
    }
  }
}

/// Where this Python's packages lie: below its prefix, and as Debian has them.
void look_at_packages(const std::string& python, VersionsFound& found) {
  namespace fs = std::filesystem;
  const fs::path prefix = fs::path{python}.parent_path().parent_path();
  if (prefix.empty()) return;
  std::error_code error;
  // "python3.11": other Pythons may have theirs beside it.
  const std::string version = fs::weakly_canonical(python, error).filename().string();
  const bool exact = !error && version.starts_with("python3.");
  for (const fs::path& libraries : {prefix / "lib", prefix / "lib64", prefix / "local" / "lib"}) {
    if (fs::is_symlink(libraries, error)) continue;  // lib64, which leads to lib
    for (fs::directory_iterator each{libraries, error}, end; !error && each != end; each.increment(error)) {
      const std::string name = each->path().filename().string();
      if (exact ? name != version && name != "python3" : !name.starts_with("python3")) continue;
      look_at_packages(each->path() / "site-packages", found);
      look_at_packages(each->path() / "dist-packages", found);
    }
  }
}

}  // namespace

std::optional<std::int64_t> shm_free_bytes() { return free_bytes("/dev/shm"); }
bool has_gpu_device() { return ::access("/dev/nvidiactl", F_OK) == 0; }
std::optional<std::int64_t> nofile_limit() { return soft_limit(RLIMIT_NOFILE); }
std::optional<std::int64_t> memlock_limit() { return soft_limit(RLIMIT_MEMLOCK); }

bool has_infiniband() {
  std::error_code error;
  return std::filesystem::directory_iterator{"/sys/class/infiniband", error} != std::filesystem::directory_iterator{};
}

std::optional<std::int64_t> pids_left() {
  std::optional<std::int64_t> left;
  if (::geteuid() != 0) left = soft_limit(RLIMIT_NPROC);  // it does not hold for root
  const auto cgroup = cgroup_folder("pids", read_text("/proc/self/cgroup"), read_text("/proc/self/mountinfo"));
  if (!cgroup) return left;
  for (std::string folder = cgroup->folder; folder.size() >= cgroup->mount.size();
       folder.resize(std::min(folder.rfind('/'), folder.size()))) {
    const auto most = number_in(folder + "/pids.max");
    const auto current = number_in(folder + "/pids.current");
    if (most && current) lower_to(left, std::max<std::int64_t>(*most - *current, 0));
    if (folder == cgroup->mount || folder.rfind('/') == std::string::npos) break;
  }
  return left;
}

DiskFacts look_at_disk(DiskUse use, const std::vector<std::string>& places, bool synced) {
  DiskFacts facts{.use = use, .path = place_for_files(places)};
  const std::string folder = existing(facts.path);
  facts.free_bytes = free_bytes(folder.c_str());
  if (!facts.free_bytes) facts.problem = fmt::format("it cannot be looked at: {}", std::strerror(errno));
  if (synced && facts.problem.empty()) time_syncs(folder, facts);
  return facts;
}

bool AskedDisks::begin(DiskUse use) {
  const std::lock_guard lock{mutex_};
  return !std::exchange(waited_for_.at(static_cast<std::size_t>(use)), true);
}

void AskedDisks::end(DiskUse use) {
  const std::lock_guard lock{mutex_};
  waited_for_.at(static_cast<std::size_t>(use)) = false;
}

PreflightFacts read_preflight_facts(const PreflightPlaces& places, PreflightLevel level, Duration disks_limit) {
  const TimePoint limit = std::chrono::steady_clock::now() + disks_limit;
  const bool synced = level == PreflightLevel::full;
  std::vector<DiskLook> disks;  // they answer while we look at what is nearer
  const auto begin = [&](DiskUse use, const std::vector<std::string>& folders) {
    disks.push_back(begin_look(use, folders, synced, places.asked));
    const auto& answer = disks.back().answer;
    if (synced && answer.valid()) answer.wait_until(limit);  // it may be the next one's disk too, and would be slower
  };
  if (!places.log_folder.empty()) begin(DiskUse::logs, {places.log_folder});
  if (!places.temporary_folders.empty()) begin(DiskUse::temporary, places.temporary_folders);
  PreflightFacts facts;
  facts.workers = places.workers;
  facts.in_pod = places.in_pod;
  facts.gpu_device = has_gpu_device();
  facts.shm_free_bytes = shm_free_bytes();
  facts.nofile = nofile_limit();
  facts.infiniband = has_infiniband();
  if (facts.infiniband) facts.memlock_bytes = memlock_limit();
  facts.pids_left = pids_left();
  bool any_lost = false;
  for (const GpuFacts& gpu : places.gpus_found.facts) {
    const bool used = places.gpus.empty() || std::ranges::find(places.gpus, gpu.index) != places.gpus.end();
    if (!used) continue;
    any_lost = any_lost || gpu.lost;
    facts.gpus.push_back(gpu);
  }
  // A machine without a driver is none that should have one.
  const bool driver = places.gpus_found.problem != no_driver;
  if (!any_lost && driver) facts.gpu_problem = places.gpus_found.problem;
  for (DiskLook& disk : disks) facts.disks.push_back(facts_of(std::move(disk), limit));
  return facts;
}

std::vector<Fact> version_facts(const std::string& python, const std::string& driver) {
  VersionsFound found;
  const std::string loaded = driver.empty() ? read_text("/sys/module/nvidia/version", 64) : driver;
  if (const auto version = stripped(loaded); !version.empty()) found["NVIDIA driver"].emplace(version);
  if (!python.empty()) look_at_packages(python, found);
  std::vector<Fact> facts;
  for (const auto& [name, versions] : found) facts.push_back({name, fmt::format("{}", fmt::join(versions, " and "))});
  return facts;
}

std::vector<Fact> facts_within(Duration limit, std::function<std::vector<Fact>()> read) {
  auto reading = in_background(std::move(read));
  if (reading.valid() && reading.wait_for(limit) == std::future_status::ready) return reading.get();
  return {{"torch", fmt::format("not known, its folder does not answer within {}", seconds(limit))}};
}

std::vector<Fact> version_facts_within(Duration limit, const std::string& python, const std::string& driver) {
  return facts_within(limit, [=] { return version_facts(python, driver); });
}

}  // namespace torchup
