#include "launcher/core/diagnosis/preflight.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

constexpr std::array<std::string_view, 11> check_names{"shm",   "nofile",   "memlock", "pids", "disk",  "gpu",
                                                       "clock", "versions", "pairs",   "nccl", "health"};

std::string counted_workers(int workers) { return fmt::format("{} {}", workers, workers == 1 ? "worker" : "workers"); }
/// "1 worker wants", "8 workers want".
std::string workers_want(int workers) { return counted_workers(workers) + (workers == 1 ? " wants" : " want"); }

class FindingList {
 public:
  void warn(Check check, std::string text, std::string remedy) {
    list_.push_back({check, FindingLevel::warning, std::move(text), std::move(remedy)});
  }
  void condemn(Check check, std::string text, std::string remedy) {
    list_.push_back({check, FindingLevel::unfit, std::move(text), std::move(remedy)});
  }
  std::vector<Finding> take() {
    if (list_.size() > findings_max) {
      std::ranges::stable_sort(list_, std::greater{}, &Finding::level);
      list_.resize(findings_max);
    }
    return std::move(list_);
  }

 private:
  std::vector<Finding> list_;
};

void look_at_shared_memory(const PreflightFacts& facts, FindingList& found) {
  // Every pod has 64 MiB unless its user says otherwise, and most have one worker that needs none.
  if (facts.in_pod && facts.workers == 1 && !facts.gpu_device) return;
  const std::int64_t shm = std::max(shm_bytes_least, shm_bytes_per_worker * facts.workers);
  if (!facts.shm_free_bytes || *facts.shm_free_bytes >= shm) return;
  const std::string each = shm > shm_bytes_least ? " each" : "";
  const std::string how = facts.in_pod
                              ? "mount an emptyDir with medium: Memory there"
                              : "make it larger (--shm-size of a container, mount -o remount,size= on a machine)";
  found.warn(Check::shm,
             fmt::format("/dev/shm has {} free, and {} {}{}", bytes_text(*facts.shm_free_bytes),
                         workers_want(facts.workers), bytes_text(each.empty() ? shm : shm_bytes_per_worker), each),
             how + ", or a DataLoader may die of a bus error");
}

void look_at_limits(const PreflightFacts& facts, FindingList& found) {
  const std::int64_t workers = facts.workers;
  const std::int64_t nofile = nofile_per_worker * workers + nofile_reserve;
  if (facts.nofile && *facts.nofile < nofile) {
    found.warn(
        Check::nofile,
        fmt::format("open files are limited to {}, and {} {}", *facts.nofile, workers_want(facts.workers), nofile),
        "raise the hard limit (ulimit -Hn, LimitNOFILE= of a unit, --ulimit nofile= of a container)");
  }
  if (facts.infiniband && facts.memlock_bytes) {
    found.warn(
        Check::memlock,
        fmt::format("locked memory is limited to {}, and InfiniBand locks its buffers",
                    bytes_text(*facts.memlock_bytes)),
        "set no limit (ulimit -l unlimited, LimitMEMLOCK=infinity of a unit, --ulimit memlock=-1 of a container)");
  }
  const std::int64_t pids = pids_per_worker * workers;
  if (facts.pids_left && *facts.pids_left < pids) {
    found.warn(Check::pids,
               fmt::format("{} more processes and threads may be started, and {} {}", *facts.pids_left,
                           workers_want(facts.workers), pids),
               "raise the limit (pids.max of the cgroup, TasksMax= of a unit, --pids-limit of a container, ulimit -u)");
  }
}

void look_at_disk(const DiskFacts& disk, bool full, FindingList& found) {
  const bool logs = disk.use == DiskUse::logs;
  const std::string name = fmt::format("{} folder {}", logs ? "log" : "temporary", printable_start(disk.path));
  const std::string another = logs ? "choose another folder with --log-dir" : "choose another folder with TMPDIR";
  if (!disk.problem.empty()) {
    found.warn(Check::disk, fmt::format("{}: {}", name, printable_start(disk.problem)), another);
    return;
  }
  if (disk.free_bytes && *disk.free_bytes < disk_free_bytes_least) {
    found.warn(Check::disk,
               fmt::format("{}: {} are free, less than {}", name, bytes_text(*disk.free_bytes),
                           bytes_text(disk_free_bytes_least)),
               "make room, or " + another);
  }
  if (full && disk.fsync && *disk.fsync > fsync_max) {
    found.warn(Check::disk,
               fmt::format("{}: 4 KiB take {} ms to be on the disk (median of {})", name,
                           std::chrono::duration_cast<std::chrono::milliseconds>(*disk.fsync).count(), fsync_tries),
               "look who keeps the disk or file server busy, or " + another);
  }
}

std::string holders_text(std::vector<GpuHolder> holders) {
  std::ranges::stable_sort(holders, std::greater{}, &GpuHolder::bytes);
  std::vector<std::string> names;
  for (const GpuHolder& holder : holders) {
    names.push_back(
        fmt::format("pid {} ({}) with {}", holder.pid, printable_start(holder.name), bytes_text(holder.bytes)));
  }
  return join_names(names, gpu_holders_told);
}

void look_at_gpu(const GpuFacts& gpu, FindingList& found) {
  const std::string name = fmt::format("GPU {}", gpu.index);
  const std::string leave_out = "or leave it out with --gpus";
  if (gpu.lost) {
    found.condemn(Check::gpu, name + " is lost" + (gpu.xid ? fmt::format(" (Xid {})", *gpu.xid) : ""),
                  "start the machine again; if it comes back, the GPU is to be replaced");
    return;
  }
  if (gpu.remap_pending || gpu.retirement_pending) {
    const char* const what = gpu.remap_pending ? "a row to be remapped" : "a page to be retired";
    found.warn(Check::gpu, fmt::format("{} has {} at its next reset", name, what),
               "reset it (nvidia-smi --gpu-reset) " + leave_out);
  }
  if (gpu.uncorrected_ecc > 0) {
    found.warn(Check::gpu, fmt::format("{} had {} memory errors that ECC did not correct", name, gpu.uncorrected_ecc),
               "reset it (nvidia-smi --gpu-reset), have it replaced if they come back, " + leave_out);
  }
  if (gpu.thermal_slowdown) {
    found.warn(Check::gpu, name + " is slowed down for its heat", "look after its cooling, " + leave_out);
  }
  if (gpu.hardware_slowdown) {
    found.warn(Check::gpu, name + " is slowed down by its hardware (power brake or heat)",
               "look after its power and cooling, " + leave_out);
  }
  if (!gpu.memory_bytes || !gpu.free_bytes) return;
  const auto share =
      static_cast<double>(*gpu.free_bytes) / static_cast<double>(std::max<std::int64_t>(*gpu.memory_bytes, 1));
  if (share >= gpu_free_share_least) return;
  found.warn(Check::gpu,
             fmt::format("{} has {} of {} free; {}", name, bytes_text(*gpu.free_bytes), bytes_text(*gpu.memory_bytes),
                         gpu.holders.empty() ? "who holds the rest is not seen from here"
                                             : "held by " + holders_text(gpu.holders)),
             "end who holds it, " + leave_out);
}

}  // namespace

std::string_view to_text(Check check) { return check_names.at(static_cast<std::size_t>(check)); }

std::string_view to_text(FindingLevel level) {
  constexpr std::array<std::string_view, 4> names{"ok", "skipped", "warning", "unfit"};
  return names.at(static_cast<std::size_t>(level));
}

std::string line_of(const Finding& finding) {
  return finding.remedy.empty() ? finding.text : finding.text + ": " + finding.remedy;
}

std::vector<Finding> preflight_findings(const PreflightFacts& facts, PreflightLevel level) {
  FindingList found;
  if (level == PreflightLevel::off) return {};
  const bool full = level == PreflightLevel::full;
  look_at_shared_memory(facts, found);
  look_at_limits(facts, found);
  for (const DiskFacts& disk : facts.disks) look_at_disk(disk, full, found);
  if (!facts.gpu_problem.empty()) {
    found.warn(Check::gpu, "the NVIDIA driver gives no answer: " + printable_start(facts.gpu_problem),
               "see whether nvidia-smi answers");
  }
  for (const GpuFacts& gpu : facts.gpus) look_at_gpu(gpu, found);
  return found.take();
}

std::optional<Finding> clock_finding(Duration ahead) {
  if (ahead <= clock_difference_max && ahead >= -clock_difference_max) return std::nullopt;
  const bool behind = ahead < Duration{0};
  return Finding{Check::clock, FindingLevel::warning,
                 fmt::format("the clock is {} {} the coordinator's", seconds(behind ? -ahead : ahead),
                             behind ? "behind" : "ahead of"),
                 "set it by NTP (chronyc makestep, timedatectl set-ntp true), or times in logs mislead"};
}

std::optional<Finding> health_finding(std::optional<int> code, std::string_view last_line, Duration limit) {
  if (code == 0) return std::nullopt;
  const std::string said = last_line.empty() ? "" : ": " + printable_start(last_line);
  const std::string what = code ? fmt::format("--health-check ended with {}", *code)
                                : fmt::format("--health-check did not end within {}", seconds(limit));
  return Finding{Check::health, FindingLevel::unfit, what + said, ""};
}

Finding pair_finding(Check check, std::string reason) {
  return {check, FindingLevel::unfit, std::move(reason),
          check == Check::nccl ? "run NCCL_DEBUG=INFO on both ends, and see their GPUs and network cards"
                               : "see its firewall, network card and cable"};
}

bool is_of_ways(const Finding& finding) {
  return finding.level == FindingLevel::unfit && (finding.check == Check::pairs || finding.check == Check::nccl);
}

Finding nccl_skipped(std::string_view why) {
  return {Check::nccl, FindingLevel::skipped, fmt::format("pairs over NCCL are not tried: {}", printable_start(why)),
          ""};
}

std::string unfit_reason(std::span<const Finding> findings) {
  std::string reason;
  for (const Finding& finding : findings) {
    if (finding.level == FindingLevel::unfit) reason += (reason.empty() ? "" : "; ") + finding.text;
  }
  return reason;
}

std::string unfit_line(std::string_view host, std::string_view reason) {
  return fmt::format("{}: unfit: {}", printable_start(host), printable_start(reason));
}

}  // namespace torchup
