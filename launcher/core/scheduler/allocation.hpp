#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/base/worker_env.hpp"

namespace torchup {

/// A value, and the variables that told it: "SLURM_STEP_NODELIST".
template <class T>
struct Told {
  T value;
  std::string from;
  friend bool operator==(const Told&, const Told&) = default;
};

/// What a scheduler's environment says of this process's place. What it does not say is nothing.
struct Allocation {
  std::string scheduler;  ///< name of its row: "slurm"
  bool each = false;      ///< we are started on every node, or as every task; else on the first node alone
  std::optional<Told<int>> nodes = {};
  std::optional<Told<int>> node = {};  ///< index of this node
  Told<int> tasks = {1, ""};           ///< that are started on this node, >= 1
  int task = 0;                        ///< which of them this process is
  std::optional<Told<std::vector<std::string>>> hosts = {};
  std::string own_name = {};  ///< this node's, on each as `hosts` has it; empty: not known
  std::optional<Told<std::string>> first_host = {};
  std::optional<Told<Port>> port = {};  ///< on the first host; nothing: derived from the run id
  std::optional<Told<std::string>> run_id = {};
  bool own_run = false;                        ///< `run_id` names what was started with us alone, and nothing later
  std::optional<Told<int>> gpus = {};          ///< of this node, or of this task
  std::optional<int> gpus_of_node = {};        ///< whatever of them this task sees
  bool gpus_visible = false;                   ///< the scheduler does not count them: those count that are visible
  std::optional<Told<std::int64_t>> end = {};  ///< of the allocation, in Unix seconds

  friend bool operator==(const Allocation&, const Allocation&) = default;
};

inline constexpr std::size_t starter_bytes_max = 4096;

/// Where schedulers leave their word.
struct SchedulerFacts {
  VariableLookup variable;
  /// The start of a file, with more than `bytes_max` bytes where it is longer.
  std::function<Result<std::string>(const std::string& path, std::size_t bytes_max)> file;
  std::string host;  ///< as gethostname gives it
  /// The beginning of the command line of the process that has started us, with a zero byte behind each word; empty: it
  /// cannot be seen.
  std::function<std::string()> starter = {};
};

}  // namespace torchup
