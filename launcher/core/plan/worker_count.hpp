#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/machine/devices.hpp"
#include "launcher/core/machine/machine.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup {

constexpr int omp_threads_max = 65'536;

/// What --nproc-per-node says.
struct WorkerCountRule {
  enum class Kind {
    number,     ///< so many
    cpu,        ///< one per CPU that we may use
    gpu,        ///< one per GPU
    automatic,  ///< one per GPU; without GPU one per CPU
  };
  Kind kind = Kind::number;
  int number = 1;  ///< for Kind::number, >= 1

  /// Whether `worker_count` needs to know the GPUs; asking the driver takes longer than starting the workers.
  [[nodiscard]] bool needs_gpus() const { return kind == Kind::gpu || kind == Kind::automatic; }
  friend bool operator==(const WorkerCountRule&, const WorkerCountRule&) = default;
};

/// Reads the option's value. A number is what Python's int() takes (" +1_0 " is 10), from 1 to
/// local_workers_max.
///
/// Errors: errc::bad_value; `xpu` and unknown words with torchrun's text. errc::limit_exceeded above the limit.
[[nodiscard]] Result<WorkerCountRule> parse_worker_count(std::string_view text);

/// Local workers by the rule, >= 1. `gpus` and `devices` may be empty when the rule does not need them; `devices` is
/// what visible_devices or choose_devices gave.
///
/// `cpu` counts the affinity mask, but no more than the CPU quota, rounded up: 16 workers that share the time of two
/// CPUs only wait for each other. torchrun counts the mask alone.
///
/// Errors: errc::refused "Cuda is not available. …" for `gpu` without one, with the driver's reason.
[[nodiscard]] Result<int> worker_count(const WorkerCountRule& rule, const Cpus& cpus, const Gpus& gpus,
                                       const std::vector<Device>& devices, bool virtual_local_rank);

/// CPUs to count on: the affinity mask, limited by the quota rounded up; >= 1.
[[nodiscard]] int usable_cpus(const Cpus& cpus);

/// Physical cores among `allowed` (their siblings count once), limited by the quota rounded down; >= 1.
[[nodiscard]] int usable_cores(const Cpus& cpus, const CpuSet& allowed);

/// What --omp says: nothing, `auto` or a number.
struct OmpRule {
  enum class Kind { contract, automatic, number };
  Kind kind = Kind::contract;
  int number = 1;
  friend bool operator==(const OmpRule&, const OmpRule&) = default;
};

/// Errors: errc::bad_value for anything but `auto` and a number from 1 to omp_threads_max.
[[nodiscard]] Result<OmpRule> parse_omp(std::string_view text);

struct OmpChoice {
  std::optional<std::string> value;  ///< set OMP_NUM_THREADS to it in every worker; nothing: leave it as it is
  bool warn = false;                 ///< the user did not choose: print torchrun's warning
  friend bool operator==(const OmpChoice&, const OmpChoice&) = default;
};

/// The OMP_NUM_THREADS rule. `inherited`: the variable exists in our environment, even empty.
///
/// By contract: leave an inherited one and that of a single worker, else 1, with the warning. --omp wins over the
/// variable, as a flag wins over its PET_ variable: `auto` is the physical cores over the local workers, at least 1.
/// `cores` is usable_cores of the CPUs that all local workers together may use.
[[nodiscard]] OmpChoice omp_num_threads(const OmpRule& rule, bool inherited, int local_world_size, int cores);

/// Fewer devices than workers. Legal (a CPU job on a GPU machine), so a warning, unless the devices were chosen by
/// name.
struct GpuShortage {
  bool refuse = false;  ///< end with 65 before the start
  std::string text;     ///< says both numbers and what to do
  friend bool operator==(const GpuShortage&, const GpuShortage&) = default;
};

/// Nothing when there are enough, when there is no GPU at all, or with --oversubscribe.
[[nodiscard]] std::optional<GpuShortage> gpu_shortage(int local_world_size, int devices, bool chosen_by_name,
                                                      bool oversubscribe);

}  // namespace torchup
