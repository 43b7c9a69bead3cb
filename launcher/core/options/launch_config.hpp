#pragma once

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/core/machine/machine.hpp"
#include "launcher/core/options/operations_options.hpp"
#include "launcher/core/options/output_plan.hpp"
#include "launcher/core/rehearsal/rehearsal_report.hpp"
#include "rendezvous/base/cpu_set.hpp"
#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/etcd/etcd_conf.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/core/text/source_list.hpp"

namespace torchup {

enum class Backend {
  c10d,    ///< the endpoint names the rendezvous; workers meet at a store of their own
  static_  ///< the endpoint is the workers' master address and port, group ranks are given by hand
};

/// A job whose coordinator is any of its agents, as they settle it in etcd.
struct EtcdMeeting {
  std::vector<Endpoint> members;  ///< at least one, in the order of trying
  etcd::Conf conf;
  std::string password;  ///< of conf.user; never printed
  friend bool operator==(const EtcdMeeting&, const EtcdMeeting&) = default;
};

/// Where and under which name the nodes of a job meet.
struct RendezvousConfig {
  Backend backend = Backend::c10d;
  std::optional<Endpoint> endpoint;  ///< nothing: one node that needs no port that others know
  std::vector<Endpoint> endpoints;   ///< daemons of which one is active; `endpoint` is the first; empty: no list
  std::optional<EtcdMeeting> etcd;   ///< set: there is no endpoint
  RunId run_id{""};
  std::string local_addr;               ///< this node's address as others should use it; empty: found out
  std::optional<GroupRank> group_rank;  ///< --node-rank, or this node's index as a scheduler told it
  std::optional<bool> is_host;          ///< nothing: the node that the endpoint names hosts the rendezvous
  int connection = -1;                  ///< open, to the coordinator of a fan-out's front; -1: none
  std::string token;                    ///< secret of the job; never printed
  SourceList allowed;                   ///< --allow
  friend bool operator==(const RendezvousConfig&, const RendezvousConfig&) = default;
};

/// How a worker is started.
struct WorkerProgram {
  std::string executable;            ///< path that is executed
  std::vector<std::string> command;  ///< its argument list, argv[0] included, before substitution
  std::size_t arguments_at = 0;      ///< index in `command` of the program's own first argument
  std::string title;                 ///< the program's name in reports
  std::string reason;                ///< why it is started so ("ELF file", "python3 on PATH"), for --dry-run
  bool python = false;               ///< `command` is a Python, `-u`, and the script or `-m` and the module
  bool module = false;               ///< the latter
  bool pass_local_rank = false;      ///< legacy: --local-rank=N goes before the program's arguments
  std::optional<std::uint32_t> template_mark = {};  ///< as in ProgramFile
  friend bool operator==(const WorkerProgram&, const WorkerProgram&) = default;
};

using Variables = std::vector<std::pair<std::string, std::string>>;

/// `--restart-backoff MIN..MAX`: the pause before a restart doubles from `least` to `most` while attempts are short.
struct RestartBackoff {
  Duration least{0};  ///< 0: restart at once, as torchrun
  Duration most{0};
  friend bool operator==(const RestartBackoff&, const RestartBackoff&) = default;
};

/// What is looked at before workers start.
enum class PreflightLevel : std::uint8_t { off, quick, full };

/// Of a health check's command: a word of a new process may have 128 KiB, the kernel's limit.
inline constexpr std::size_t health_check_bytes_max = std::size_t{64} << 10;

/// Checks before the start (launcher/core/diagnosis/preflight).
struct PreflightConfig {
  PreflightLevel level = PreflightLevel::quick;
  bool only = false;  ///< nodes meet, look at each other and end: there is no program
  bool as_json = false;
  std::string python;        ///< whose packages are compared between nodes; empty: none
  std::string health_check;  ///< for `sh -c` before each Join; empty: none
  bool gpus_asked = false;   ///< the driver was, for the plan
  std::vector<int> gpus;     ///< indices of those that the job uses; empty: all, as far as is known
  Gpus gpus_found;           ///< what it said
  friend bool operator==(const PreflightConfig&, const PreflightConfig&) = default;
};

/// --rehearse and --rehearse-nodes.
struct RehearsalConfig {
  std::optional<RehearsalScript> script;
  int nodes = 0;                      ///< that are started here; 0: this is an agent like any other
  std::optional<RehearsedNode> node;  ///< which of them this agent is
  friend bool operator==(const RehearsalConfig&, const RehearsalConfig&) = default;
};

/// --stop-before: a job that is longer than its time saves and stops.
struct StopBefore {
  Duration lead{0};            ///< before the end of the time, > 0
  int signal = SIGTERM;        ///< for workers that do not report steps over their pages
  std::string squeue = {};     ///< the program that says when the time ends, if that changes; empty: it cannot
  std::string slurm_job = {};  ///< for it
  bool untold = false;         ///< nobody has told this node when that is: it stops when the first other node does
  friend bool operator==(const StopBefore&, const StopBefore&) = default;
};

/// --requeue, where this node is to put the job back into Slurm's queue.
struct RequeueConfig {
  int most = 0;           ///< so often a job may come back
  int restarts = 0;       ///< so often this one has
  std::string slurm_job;  ///< as Slurm's commands name it
  std::string scontrol;   ///< the program
  friend bool operator==(const RequeueConfig&, const RequeueConfig&) = default;
};

/// What the scheduler around us says that is no option's value.
struct SchedulerPart {
  bool asked = false;                      ///< --scheduler is not none, whether there is one or not
  std::string name = {};                   ///< "slurm"; empty: there is none
  bool slurm_step = false;                 ///< our variables are those of a task of a step of Slurm
  std::vector<std::string> hosts = {};     ///< of the whole job, or of its step
  std::string hosts_from = {};             ///< the variables that told them
  std::string own_name = {};               ///< how `hosts` name this node; empty: as gethostname does
  std::vector<Port> further_ports = {};    ///< of the first host, for when that of the endpoint is taken
  std::optional<bool> is_host = {};        ///< by this node's index; nothing: the endpoint is not the scheduler's
  std::optional<int> node = {};            ///< index of this node
  std::string node_from = {};              ///< who told it
  int tasks = 1;                           ///< that the scheduler starts on this node
  int task = 0;                            ///< which of them we are
  std::string step = {};                   ///< what these tasks have alike; empty: no name is known
  bool own_run = false;                    ///< see Allocation::own_run
  std::optional<int> gpus = {};            ///< of this node, where the scheduler says so
  std::vector<std::string> warnings = {};  ///< said once at the start
  friend bool operator==(const SchedulerPart&, const SchedulerPart&) = default;
};

/// Where the values came from that a scheduler may tell: an option, a variable, "default".
struct PlanOrigins {
  std::string nodes = {}, workers = {}, node_rank = {}, endpoint = {}, run_id = {}, shutdown_timeout = {},
              deadline = {};
  friend bool operator==(const PlanOrigins&, const PlanOrigins&) = default;
};

/// What one agent is going to do: the plan, a checked value that --dry-run prints.
struct LaunchConfig {
  JobTerms terms;
  int local_world_size = 1;  ///< >= 1
  std::string role = "default";
  RendezvousConfig rendezvous;
  SchedulerPart scheduler;
  PlanOrigins origins;
  WorkerProgram program;

  /// What workers find loaded (--preload): modules, or where no Python runs it the program itself; empty: nothing.
  std::vector<std::string> preload;
  bool worker_hook = true;  ///< Python workers tell us of themselves (launcher/python/injected/torchup_worker.py)

  RestartBackoff restart_backoff;
  Duration stop_grace = std::chrono::seconds{30};  ///< between the stop signal and SIGKILL
  std::vector<int> end_signals;                    ///< end the job, or make this node leave it
  bool end_signals_listed = false;                 ///< by the user: then each of them ends the job on all nodes
  std::vector<int> forward_signals;                ///< passed on; the job goes on
  std::vector<int> drain_signals;        ///< ask the workers to save and stop; the second one of a kind is as any other
  Duration stuck_timeout{0};             ///< longest uninterruptible sleep of a worker; 0: not watched
  bool propagate_exit_code = false;      ///< the first failed worker's code becomes ours
  Duration timeout{0};                   ///< the job ends when it has run so long; 0: never
  std::optional<std::int64_t> deadline;  ///< the end of the job's time, in Unix seconds; nothing: none is known
  std::optional<StopBefore> stop_before;  ///< that end
  std::optional<RequeueConfig> requeue;   ///< after an end that is none; nothing: not by this node

  bool virtual_local_rank = false;          ///< LOCAL_RANK is 0 for all
  Variables variables;                      ///< for all workers, beyond the contract's
  std::vector<Variables> worker_variables;  ///< index: local rank; empty: none
  std::vector<CpuSet> worker_cpus;          ///< index: local rank; empty: workers are not bound
  bool share_store = true;                  ///< the agent serves the workers' store; else rank 0 of them does
  std::string signals_to_handle;            ///< as given; workers see it in TORCHELASTIC_SIGNALS_TO_HANDLE

  OutputOptions output;
  OperationsOptions operations;
  PreflightConfig preflight;
  RehearsalConfig rehearsal;
  bool set_socket_ifname = false;  ///< tell NCCL and gloo the interface that leads to the other nodes
  std::string parent_error_file;   ///< where whoever started us wants to find the cause of a failure; empty: nowhere
  std::string event_log_handler = "null";
  std::string timer_file;           ///< the watchdog's pipe; empty: no watchdog
  std::optional<Port> health_port;  ///< answers probes
  bool in_pod = false;              ///< of Kubernetes, whose probes come from outside
  bool front = false;               ///< of a fan-out: all this is done on scheduler.hosts, as each finds it there
  bool behind_front = false;        ///< one of those hosts: its front tells what nobody else is there to tell
  bool merged_output = false;       ///< all nodes' lines go to one place: each thing is told by one of them
  std::string gives_up;             ///< why no worker can run here, which ends the job everywhere; empty: they can
  int gives_up_code = exit_code::too_few;  ///< and with which code
  std::vector<std::string> warnings;       ///< said once at the start
  friend bool operator==(const LaunchConfig&, const LaunchConfig&) = default;

  [[nodiscard]] bool one_node() const { return terms.max_nodes == 1; }
  /// This node's place as somebody has told it; nothing: nobody has.
  [[nodiscard]] std::optional<int> node_rank() const {
    return rendezvous.group_rank ? std::optional{rendezvous.group_rank->value()} : scheduler.node;
  }
  /// Whether each of the front's hosts decides how many workers it has.
  [[nodiscard]] bool hosts_count_workers() const { return front && origins.workers == "default"; }
  /// Whether a path may be the same file on all nodes, so that one of them writes there what is the job's. Containers
  /// have their own files, and of a front's hosts the front has them all.
  [[nodiscard]] bool shares_files() const { return merged_output && !behind_front && !in_pod; }
  /// Whether this node tells what is the whole job's.
  [[nodiscard]] bool tells_for_all() const { return !merged_output || scheduler.node == 0; }
};

}  // namespace torchup
