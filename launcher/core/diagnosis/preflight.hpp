#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/machine/machine.hpp"
#include "launcher/core/options/launch_config.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/messages.hpp"

/// What is looked at on a node before its workers start: findings from facts that the shell has read.
namespace torchup {

inline constexpr std::int64_t shm_bytes_least = std::int64_t{1} << 30;
inline constexpr std::int64_t shm_bytes_per_worker = std::int64_t{64} << 20;
inline constexpr std::int64_t nofile_per_worker = 4;
inline constexpr std::int64_t nofile_reserve = 64;
inline constexpr std::int64_t pids_per_worker = 64;
inline constexpr std::int64_t disk_free_bytes_least = std::int64_t{1} << 30;
inline constexpr Duration fsync_max = std::chrono::milliseconds{100};  ///< of 4 KiB, the median of fsync_tries
inline constexpr int fsync_tries = 5;
inline constexpr double gpu_free_share_least = 0.9;
inline constexpr Duration clock_difference_max = std::chrono::seconds{1};
inline constexpr Duration unfit_look_interval = std::chrono::seconds{30};  ///< until an unfit node is looked at again

/// How long the nodes of a round may take to tell each other what was found and to try the ways between them: of a job,
/// and where that is all there is to do.
inline constexpr Duration job_comparison_limit = std::chrono::seconds{120};
inline constexpr Duration comparison_limit = std::chrono::seconds{180};
/// Of what a health check is told of the last failure: a variable of a new process may have 128 KiB, the kernel's
/// limit.
inline constexpr std::size_t last_failure_bytes_max = 4096;

inline constexpr std::size_t findings_max = 64;     ///< of one node; those that make it unfit go first
inline constexpr std::size_t gpu_holders_told = 4;  ///< of one GPU, the largest

enum class Check : std::uint8_t { shm, nofile, memlock, pids, disk, gpu, clock, versions, pairs, nccl, health };
/// "shm": as events, JSON and the table have it.
[[nodiscard]] std::string_view to_text(Check check);

enum class FindingLevel : std::uint8_t {
  good,     ///< nothing was found
  skipped,  ///< it could not be looked at, which says nothing of the node
  warning,  ///< the job starts
  unfit,    ///< the node is no candidate
};
/// "ok", "skipped", "warning", "unfit".
[[nodiscard]] std::string_view to_text(FindingLevel level);

struct Finding {
  Check check = Check::shm;
  FindingLevel level = FindingLevel::warning;
  std::string text = {};    ///< names the thing and what is wrong: "GPU 3 is lost (Xid 79)"
  std::string remedy = {};  ///< what the user can do
  friend bool operator==(const Finding&, const Finding&) = default;
};
/// Both, for people and events.
[[nodiscard]] std::string line_of(const Finding& finding);

enum class DiskUse : std::uint8_t { logs, temporary };
inline constexpr std::size_t disk_uses = 2;
struct DiskFacts {
  DiskUse use = DiskUse::logs;
  std::string path = {};
  std::optional<std::int64_t> free_bytes = {};
  std::optional<Duration> fsync = {};  ///< the median
  std::string problem = {};            ///< why it could not be tried; else empty
};

/// What is not known, or not limited, is nothing, and leads to no finding.
struct PreflightFacts {
  int workers = 1;  ///< of this node
  bool in_pod = false;
  bool gpu_device = false;  ///< there is a GPU for us, whether the driver was asked or not
  std::optional<std::int64_t> shm_free_bytes = {};
  std::optional<std::int64_t> nofile = {};  ///< after raising
  bool infiniband = false;
  std::optional<std::int64_t> memlock_bytes = {};
  std::optional<std::int64_t> pids_left = {};
  std::vector<DiskFacts> disks = {};
  std::vector<GpuFacts> gpus = {};
  std::string gpu_problem = {};  ///< why the driver gives no answer, where it should; else empty
};

/// What is wrong, in the order of the checks. `quick` passes over what only `full` looks at.
[[nodiscard]] std::vector<Finding> preflight_findings(const PreflightFacts& facts, PreflightLevel level);

/// Of a clock of the day that is `ahead` of the coordinator's, below 0 for behind. It is known when the nodes meet.
[[nodiscard]] std::optional<Finding> clock_finding(Duration ahead);

inline constexpr Duration health_check_limit = std::chrono::seconds{60};
/// Of --health-check; nothing for code 0. `code` is the shell's, nothing where it did not end within `limit`;
/// `last_line` a stranger's.
[[nodiscard]] std::optional<Finding> health_finding(std::optional<int> code, std::string_view last_line,
                                                    Duration limit = health_check_limit);

/// Of a node that results of pairs condemn (pair_plan): `check` is pairs or nccl.
[[nodiscard]] Finding pair_finding(Check check, std::string reason);
/// Whether that condemns a node by its ways to others: pair_finding.
[[nodiscard]] bool is_of_ways(const Finding& finding);
/// Ways over NCCL that are not tried.
[[nodiscard]] Finding nccl_skipped(std::string_view why);

/// Why the node is no candidate; empty when it is one.
[[nodiscard]] std::string unfit_reason(std::span<const Finding> findings);

/// "nodeb: unfit: GPU 3 is lost (Xid 79)".
[[nodiscard]] std::string unfit_line(std::string_view host, std::string_view reason);

// --preflight-only.

struct NodePreflight {
  std::string host = {};
  std::vector<Check> done = {};
  std::vector<Finding> findings = {};
  std::vector<Fact> versions = {};  ///< driver, torch, NCCL
};

/// 0 when `min_nodes` of them are fit, 65 when not, 66 when fewer have come.
[[nodiscard]] int preflight_code(std::span<const NodePreflight> nodes, int min_nodes);

/// A row a node, a column a check; below it a line for each finding, and what versions differ, which is a warning to
/// all nodes. Ends with a line feed.
[[nodiscard]] std::string preflight_table(std::span<const NodePreflight> nodes);

/// Likewise as one line of JSON: {"schema": 1, "exit_code", "nodes": [{"host", "fit", "versions": {name: value},
/// "checks": [{"check", "level", "text", "remedy"}]}], "differences"}. A check without a finding has level "ok"
/// ("warning" for versions that differ) and no text. Ends with a line feed.
[[nodiscard]] std::string preflight_json(std::span<const NodePreflight> nodes, int min_nodes);
inline constexpr int preflight_schema = 1;

}  // namespace torchup
