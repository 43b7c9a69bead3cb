#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/core/output_options.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

enum class Backend {
  c10d,    ///< the endpoint names the rendezvous; workers meet at a store of their own
  static_  ///< the endpoint is the workers' master address and port, group ranks are given by hand
};

/// Where and under which name the nodes of a job meet.
struct RendezvousConfig {
  Backend backend = Backend::c10d;
  std::string host;                          ///< without brackets
  Port port{0};                              ///< 0: any free one, for one node only
  std::string run_id;
  std::string local_addr;                    ///< this node's address as others should use it; empty: found out
  int node_rank = 0;                         ///< static only
  std::map<std::string, std::string> conf;   ///< the keys of --rdzv-conf, unknown ones included
  std::optional<bool> is_host;               ///< nothing: the node that owns `host` hosts the rendezvous
  Duration join_timeout = std::chrono::seconds{600};
  Duration last_call_timeout = std::chrono::seconds{30};
  friend bool operator==(const RendezvousConfig&, const RendezvousConfig&) = default;
};

/// How a worker is started.
struct WorkerProgram {
  std::vector<std::string> command;  ///< before substitution; the first word is a path or a name to look up on PATH
  std::size_t arguments_at = 0;      ///< index in `command` of the program's own first argument
  std::string title;                 ///< the program's name in reports
  std::string reason;                ///< why it is started so ("ELF file", "python3 on PATH"), for --dry-run
  bool pass_local_rank = false;      ///< legacy: --local-rank=N goes before the program's arguments
  friend bool operator==(const WorkerProgram&, const WorkerProgram&) = default;
};

/// `--restart-backoff MIN..MAX`: the pause before a restart doubles from `least` to `most` while attempts are short.
struct RestartBackoff {
  Duration least{0};  ///< 0: restart at once, as torchrun
  Duration most{0};
  friend bool operator==(const RestartBackoff&, const RestartBackoff&) = default;
};

/// What one agent is going to do: the plan, a checked value that --dry-run prints.
struct LaunchConfig {
  int min_nodes = 1;  ///< >= 1
  int max_nodes = 1;  ///< >= min_nodes
  int local_world_size = 1;  ///< >= 1
  std::string role = "default";
  RendezvousConfig rendezvous;
  WorkerProgram program;

  int max_restarts = 0;  ///< >= 0
  RestartBackoff restart_backoff;
  Duration restart_window{0};  ///< only restarts younger than this count against max_restarts; 0: all of them
  Duration stop_grace = std::chrono::seconds{30};  ///< between the stop signal and SIGKILL
  std::vector<int> end_signals;      ///< end the job, or make this node leave it
  bool end_signals_listed = false;   ///< by the user: then each of them ends the job on all nodes
  std::vector<int> forward_signals;  ///< passed on; the job goes on
  bool propagate_exit_code = false;  ///< the first failed worker's code becomes ours
  Duration timeout{0};               ///< the job ends when it has run so long; 0: never

  bool virtual_local_rank = false;
  std::vector<std::string> visible_devices;  ///< per local rank, what CUDA_VISIBLE_DEVICES becomes; empty: unchanged
  std::optional<int> omp_num_threads;        ///< set for the workers; nothing: left as it is
  std::string signals_to_handle;             ///< as given; workers see it in TORCHELASTIC_SIGNALS_TO_HANDLE

  OutputOptions output;
  std::string event_log_handler = "null";
  std::vector<std::string> warnings;  ///< said once at the start
  friend bool operator==(const LaunchConfig&, const LaunchConfig&) = default;

  [[nodiscard]] bool one_node() const { return max_nodes == 1; }
};

}  // namespace torchup
