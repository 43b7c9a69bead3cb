#include "launcher/core/options/option_table.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>
#include <utility>
#include <vector>

namespace torchup {
namespace {

constexpr std::string_view nodes = "Nodes and workers";
constexpr std::string_view on_hosts = "Hosts that agents are started on";
constexpr std::string_view meeting = "Rendezvous";
constexpr std::string_view program = "Program";
constexpr std::string_view life = "Failures, restarts and stopping";
constexpr std::string_view checks = "Checks before the start";
constexpr std::string_view rehearsals = "Rehearsal of faults";
constexpr std::string_view output = "Output and records";
constexpr std::string_view looking = "Looking at the job while it runs";
constexpr std::string_view devices = "Devices and threads";
constexpr std::string_view show = "Looking without starting";

constexpr std::array table = {
    OptionSpec{"nnodes", 0, ValueKind::text, "N|MIN:MAX", nodes,
               "Number of nodes, or the range for an elastic job (default 1)."},
    OptionSpec{"nproc-per-node", 0, ValueKind::text, "N|auto|gpu|cpu", nodes,
               "Workers on this node: a number, one per GPU (gpu), per CPU (cpu), or GPUs if there are any (auto); "
               "default 1."},
    OptionSpec{"node-rank", 0, ValueKind::integer, "N", nodes,
               "Rank of this node, with the static rendezvous (default 0)."},
    OptionSpec{
        "scheduler", 0, ValueKind::text, "auto|none|NAME", nodes,
        "Whose variables tell what the options do not: nodes, workers, where they meet; auto (default) takes the "
        "innermost that is there. Under the name torchrun it is none.",
        "auto|none|openmpi|mpich|slurm|volcano|kubernetes|sagemaker|azureml|skypilot|lsf|pbs|sge"},
    OptionSpec{"role", 0, ValueKind::text, "NAME", nodes,
               "Role of the workers; role ranks count within it (default default)."},

    OptionSpec{"hosts", 0, ValueKind::text, "LIST|auto", on_hosts,
               "Start an agent on each of these hosts over ssh: gpu[01-04]:8,me@login,[fe80::7], with the workers of "
               "each behind the colon; auto: those of the batch job around us."},
    OptionSpec{"hostfile", 0, ValueKind::text, "FILE", on_hosts,
               "The same from a file, one host a line: NAME, NAME:8, NAME slots=8 addr=ADDRESS."},
    OptionSpec{"host-discovery", 0, ValueKind::text, "COMMAND|FILE", on_hosts,
               "The same from what a command prints, or a file holds, again and again: hosts come and go."},
    OptionSpec{"discovery-interval", 0, ValueKind::seconds, "SECONDS", on_hosts,
               "How often --host-discovery is asked (default 1)."},
    OptionSpec{"host-cooldown", 0, ValueKind::text, "MIN..MAX", on_hosts,
               "When a discovered host that has failed is tried again, in seconds, doubled from MIN to MAX (default "
               "10..300)."},
    OptionSpec{"ssh", 0, ValueKind::text, "COMMAND", on_hosts,
               "What starts a command on a host, whose name takes the place of {host} or stands behind (default ssh -o "
               "BatchMode=yes -o ConnectTimeout=10 -x -T)."},
    OptionSpec{"export", 0, ValueKind::text, "ALL|NONE|NAME[=VALUE],...", on_hosts,
               "What of our environment the hosts get (default ALL)."},
    OptionSpec{"chdir", 0, ValueKind::text, "DIR", on_hosts, "Directory to work in there (default: ours)."},
    OptionSpec{"remote-torchup", 0, ValueKind::text, "PATH", on_hosts, "Our program there (default: our own path)."},
    OptionSpec{"no-label", 0, ValueKind::flag, "", on_hosts, "No host's name in front of its lines."},

    OptionSpec{"rdzv-backend", 0, ValueKind::text, "NAME", meeting,
               "How nodes meet: c10d, etcd or static (default static; one node needs none)."},
    OptionSpec{"rdzv-endpoint", 0, ValueKind::text, "HOST[:PORT],...", meeting,
               "Where nodes meet; the machine that it names hosts the rendezvous (default port 29400). Several: torchupd "
               "of one etcd, of which one is active; with etcd its members (default port 2379)."},
    OptionSpec{"rdzv-id", 0, ValueKind::text, "ID", meeting,
               "Run id: nodes with the same one form a job (default none)."},
    OptionSpec{"rdzv-conf", 0, ValueKind::text, "KEY=VALUE,...", meeting,
               "Timeouts and more: join_timeout, last_call_timeout, is_host; with etcd also protocol, cacert, cert, key, "
               "etcd_prefix, user, password_file, port."},
    OptionSpec{"standalone", 0, ValueKind::flag, "", meeting,
               "One node, on a free port; other rendezvous options are ignored."},
    OptionSpec{"master-addr", 0, ValueKind::text, "HOST", meeting,
               "Address of node 0, with the static rendezvous (default 127.0.0.1)."},
    OptionSpec{"master-port", 0, ValueKind::integer, "PORT", meeting,
               "Port on node 0, with the static rendezvous (default 29500)."},
    OptionSpec{"local-addr", 0, ValueKind::text, "ADDRESS", meeting, "How other nodes reach this one."},
    OptionSpec{
        "allow", 0, ValueKind::text, "ADDRESS,...", meeting,
        "Addresses and networks (10.0.0.0/24) from which store clients may come besides this machine and the job's "
        "nodes; with a token, or with this option, all others are refused."},
    OptionSpec{"store-proxy", 0, ValueKind::flag, "", meeting,
               "Workers reach their store by their own node's agent (MASTER_ADDR=127.0.0.1), and the agents each other's "
               "by one link, encrypted where there is a token; no port of the network speaks TCPStore."},
    OptionSpec{"token-file", 0, ValueKind::text, "FILE", meeting,
               "Secret of the job that agents prove to each other; only we may be able to read the file."},
    OptionSpec{
        "rank-order", 0, ValueKind::text, "address|join|hostlist", meeting,
        "Order of the nodes' ranks: by --local-addr or host name (default, where no scheduler counts nodes), by the "
        "time of joining, or as in --expect-hosts.",
        "address|join|hostlist"},
    OptionSpec{"nnodes-multiple-of", 0, ValueKind::integer, "N", meeting,
               "A round has a multiple of this many nodes; the others wait."},
    OptionSpec{
        "expect-hosts", 0, ValueKind::text, "HOST,...", meeting,
        "Who is to come, as Slurm writes it: gpu[01-12],login (default: Slurm's list). They are waited for by name."},
    OptionSpec{"set-socket-ifname", 0, ValueKind::flag, "", meeting,
               "Set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to the interface that leads to the other nodes."},
    OptionSpec{"lease", 0, ValueKind::seconds, "SECONDS", meeting,
               "Silence after which a node is given up (default 10)."},
    OptionSpec{"same-world", 0, ValueKind::text, "warn|fail|off", meeting,
               "What to do when program or environment differ between nodes (default warn).", "warn|fail|off"},

    OptionSpec{"module", 'm', ValueKind::flag, "", program, "The program is a Python module."},
    OptionSpec{"no-python", 0, ValueKind::flag, "", program, "Start the program itself, without Python."},
    OptionSpec{"run-path", 0, ValueKind::flag, "", program,
               "Run the script with Python under the name run_script_path."},
    OptionSpec{"preload", 0, ValueKind::text, "MODULE,...|program", program,
               "Import these Python modules once and fork the workers from there; torch stands for all that an "
               "optimizer needs, program for a C++ program on worker_runtime, loaded up to its worker_main."},
    OptionSpec{"no-worker-hook", 0, ValueKind::flag, "", program,
               "Leave Python workers alone: nothing is known of their stacks, exceptions, steps and collectives."},
    OptionSpec{"use-env", 0, ValueKind::flag, "", program, "Do not pass --local-rank to the program.", {}, false},
    OptionSpec{"start-method", 0, ValueKind::text, "spawn|fork|forkserver", program,
               "Accepted for torchrun's sake; without effect.", "spawn|fork|forkserver", true, true},

    OptionSpec{"max-restarts", 0, ValueKind::integer, "N", life,
               "Restarts of the job after worker failures (default 0)."},
    OptionSpec{"restart-backoff", 0, ValueKind::text, "MIN..MAX", life,
               "Pause before a restart in seconds, doubled from MIN to MAX while attempts live less than 10 s."},
    OptionSpec{"restart-window", 0, ValueKind::seconds, "SECONDS", life,
               "Only restarts within this time count against --max-restarts."},
    OptionSpec{"monitor-interval", 0, ValueKind::seconds, "SECONDS", life,
               "Accepted for torchrun's sake; a worker's end is seen at once."},
    OptionSpec{"shutdown-timeout", 0, ValueKind::integer, "SECONDS", life,
               "Between the stop signal and SIGKILL (default 30)."},
    OptionSpec{"signals-to-handle", 0, ValueKind::text, "SIGNAL,...", life,
               "Signals that stop workers and end the job (default SIGTERM,SIGINT,SIGHUP,SIGQUIT)."},
    OptionSpec{"forward-signals", 0, ValueKind::text, "SIGNAL,...", life,
               "Signals that are passed on to the workers while the job goes on (default USR1,USR2)."},
    OptionSpec{
        "drain-signals", 0, ValueKind::text, "SIGNAL,...", life,
        "Signals that ask the workers to save and stop together after a step (default none); the job ends with 75."},
    OptionSpec{"hang-timeout", 0, ValueKind::text, "auto|off|S[,START]", life,
               "How long no rank of the job may make progress before it is told which one keeps the others from it: in "
               "seconds, START until the first progress; auto (default) learns it from the job."},
    OptionSpec{"on-hang", 0, ValueKind::text, "report|abort|restart", life,
               "What is done with ranks that hang: nothing (default), or they are ended, and the job with them, or the "
               "workers are started again as after a failure.",
               "report|abort|restart"},
    OptionSpec{"heartbeat-timeout", 0, ValueKind::seconds, "SECONDS", life,
               "The same as --hang-timeout=SECONDS --on-hang=restart."},
    OptionSpec{"straggler-window", 0, ValueKind::seconds, "SECONDS", life,
               "How often it is looked for a rank that is late at collectives (default 60; 0: never)."},
    OptionSpec{"timeout", 0, ValueKind::seconds, "SECONDS", life, "The job is stopped when it has run so long."},
    OptionSpec{"deadline", 0, ValueKind::integer, "UNIX_SECONDS", life,
               "When the time of this job is over, for --stop-before (default: when Slurm ends it)."},
    OptionSpec{"stop-before", 0, ValueKind::text, "DURATION[@SIGNAL]", life,
               "So long (5m, 1h30m) before that the workers are asked to save and stop, those that report no steps by "
               "SIGNAL (default TERM); the job ends with 75."},
    OptionSpec{
        "requeue", 0, ValueKind::integer, "N", life,
        "A job of Slurm that ends with 75, or makes room for another, goes back into the queue, N times at most."},
    OptionSpec{"propagate-exit-code", 0, ValueKind::flag, "", life,
               "End with the code of the worker that failed first, not with 1."},

    OptionSpec{"preflight", 0, ValueKind::text, "off|quick|full", checks,
               "What is looked at before the start: limits, disks and GPUs (quick, the default), or also the speed of "
               "disks, the clock and the way between nodes (full).",
               "off|quick|full"},
    OptionSpec{"preflight-only", 0, ValueKind::flag, "", checks,
               "Nodes meet, look at everything, print a table of all of them, and end: 0, 65 or 66. No program."},
    OptionSpec{"health-check", 0, ValueKind::text, "COMMAND", checks,
               "For sh -c, on each node before it joins; one that ends with other than 0 within 60 s, or not at all, "
               "makes the node unfit."},

    OptionSpec{"rehearse", 0, ValueKind::text, "SCRIPT|@FILE", rehearsals,
               "Faults that are brought about in this job, and what is expected of it: 'at 5s kill rank=1; at step 20 "
               "stop node=1 for=3s; expect restarts<=1 recovery<=30s'. The job ends with 0 only if all of it holds."},
    OptionSpec{"rehearse-nodes", 0, ValueKind::integer, "N", rehearsals,
               "The nodes of the rehearsal are N agents on this machine, which a fault may end and start again."},

    OptionSpec{"log-dir", 0, ValueKind::text, "DIR", output,
               "Folder for log files and error files (default: a temporary one)."},
    OptionSpec{"redirects", 'r', ValueKind::text, "0|1|2|3|MAP", output,
               "Streams that go to files: 1 stdout, 2 stderr, 3 both, or LOCAL_RANK:VALUE,..."},
    OptionSpec{"tee", 't', ValueKind::text, "0|1|2|3|MAP", output,
               "Streams that go to files and, with a prefix, to the console."},
    OptionSpec{"log-line-prefix-template", 0, ValueKind::text, "TEXT", output,
               "Prefix of teed lines, with ${role_name}, ${rank}, ${local_rank}, ${hostname}."},
    OptionSpec{"local-ranks-filter", 0, ValueKind::text, "RANK,...", output,
               "Only these local ranks appear on the console."},
    OptionSpec{"duplicate-stdout-filters", 0, ValueKind::text, "TEXT,...", output,
               "Teed stdout lines with one of these texts also go to filtered_stdout.log."},
    OptionSpec{"duplicate-stderr-filters", 0, ValueKind::text, "TEXT,...", output,
               "Teed stderr lines with one of these texts also go to filtered_stderr.log."},
    OptionSpec{"log-max-bytes", 0, ValueKind::integer, "N", output,
               "Size at which a log file is rotated (default: never)."},
    OptionSpec{"no-capture", 0, ValueKind::flag, "", output,
               "Workers write to our own stdout and stderr, as under torchrun."},
    OptionSpec{"logs-specs", 0, ValueKind::text, "NAME", output, "A Python plug-in of torchrun; refused.", {}, false},
    OptionSpec{"event-log-handler", 0, ValueKind::text, "null|console", output,
               "console: torchrun's events as JSON on stderr."},
    OptionSpec{"events", 0, ValueKind::text, "FILE", output, "Everything that happens, one JSON object a line."},
    OptionSpec{
        "ledger", 0, ValueKind::text, "auto|always|never", output,
        "Say at the end what the job's time was spent on: after more than a minute (auto, the default), always or "
        "never.",
        "auto|always|never"},
    OptionSpec{"on-event", 0, ValueKind::text, "COMMAND", output,
               "For sh -c when something of --on-event-kinds happens, with the event on stdin."},
    OptionSpec{"on-event-kinds", 0, ValueKind::text, "KIND,...", output,
               "Events that --on-event hears of (default incident_recorded,restarting,worker_hung,job_ended)."},
    OptionSpec{"result-file", 0, ValueKind::text, "FILE", output,
               "Verdict, exit codes, attempts and times as JSON, at the end."},
    OptionSpec{"termination-log", 0, ValueKind::text, "FILE", output,
               "Verdict and root cause in 4 KiB where the job fails (default /dev/termination-log in a pod; empty: "
               "none)."},
    OptionSpec{"quiet", 'q', ValueKind::flag, "", output,
               "Of ourselves only errors and the failure report, unless --log-level says otherwise."},
    OptionSpec{"log-level", 0, ValueKind::text, "LEVEL", output,
               "Our own lines of this level and worse: debug, info, warning or error (default info).",
               "debug|info|warning|error"},
    OptionSpec{"log-format", 0, ValueKind::text, "text|json", output,
               "Our own lines for people, or as one JSON object each, with time and level (default text).",
               "text|json"},

    OptionSpec{"no-control-socket", 0, ValueKind::flag, "", looking,
               "No unix socket for torchupctl in $TORCHUP_RUNTIME_DIR (default /tmp/torchup-UID)."},
    OptionSpec{"status-port", 0, ValueKind::integer, "PORT", looking,
               "Answer over HTTP on this port too, with the job's page and metrics (0: any free one; default: none)."},
    OptionSpec{"status-bind", 0, ValueKind::text, "ADDRESS", looking,
               "Numeric address of --status-port; :: is all of them (default localhost)."},
    OptionSpec{"status-host", 0, ValueKind::text, "NAME,...", looking,
               "Names that Host may be over HTTP without a token, beside addresses, localhost and this machine's own."},
    OptionSpec{"read-token-file", 0, ValueKind::text, "FILE", looking,
               "Another secret than --token-file: who sends it over HTTP may see the job, and steer nothing."},

    OptionSpec{"gpus", 0, ValueKind::text, "LIST", devices, "GPUs to use: indices among the visible ones, or UUIDs."},
    OptionSpec{"oversubscribe", 0, ValueKind::flag, "", devices, "More workers than GPUs are intended."},
    OptionSpec{"virtual-local-rank", 0, ValueKind::flag, "", devices, "Every worker sees one GPU and LOCAL_RANK 0."},
    OptionSpec{"numa-binding", 0, ValueKind::text, "node|socket|exclusive|core-complex", devices,
               "Bind workers to CPUs near their GPU.", "node|socket|exclusive|core-complex", false},
    OptionSpec{"omp", 0, ValueKind::text, "N|auto", devices,
               "OMP_NUM_THREADS of the workers; auto: cores over workers."},

    OptionSpec{"config",
               0,
               ValueKind::text,
               "FILE",
               show,
               "Options from a file, one NAME = VALUE a line; the command line wins.",
               {},
               false},
    OptionSpec{"dry-run", 0, ValueKind::flag, "", show, "Print the plan and start nothing.", {}, false},
    OptionSpec{"print-env", 0, ValueKind::flag, "", show, "Print the environment that a worker would get.", {}, false},
    OptionSpec{"rank", 0, ValueKind::integer, "N", show, "The worker of --print-env (default 0).", {}, false},
    OptionSpec{"format", 0, ValueKind::text, "sh|json", show,
               "The form of --print-env (default sh); json is also one of --dry-run.", "sh|json", false},
    OptionSpec{
        "print-batch-script", 0, ValueKind::text, "slurm|kubernetes", show,
        "Print what starts this command line as a job there: a script for sbatch, or a Service and an Indexed Job.",
        "slurm|kubernetes", false},
    OptionSpec{"print-completion", 0, ValueKind::text, "bash|zsh|fish|tcsh", show,
               "Print the completion script for a shell.", "bash|zsh|fish|tcsh", false},
    OptionSpec{"version", 0, ValueKind::flag, "", show, "Print the version.", {}, false},
    OptionSpec{"json", 0, ValueKind::flag, "", show, "With --version and --preflight-only: as JSON.", {}, false},
    OptionSpec{"help", 'h', ValueKind::flag, "", show, "Print this help.", {}, false},
};

/// Levenshtein's distance.
std::size_t distance(std::string_view left, std::string_view right) {
  std::vector<std::size_t> row(right.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= left.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= right.size(); ++j) {
      const std::size_t substituted = diagonal + (left[i - 1] == right[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, substituted}));
    }
  }
  return row.back();
}

}  // namespace

std::span<const OptionSpec> option_table() { return table; }

const OptionSpec* find_option(std::string_view name) {
  const auto same = [name](const OptionSpec& option) {
    return option.name == name || underscored(option.name) == name;
  };
  const auto found = std::find_if(table.begin(), table.end(), same);
  return found == table.end() ? nullptr : &*found;
}

const OptionSpec* find_option(char short_name) {
  const auto same = [short_name](const OptionSpec& option) { return option.short_name == short_name; };
  const auto found = std::find_if(table.begin(), table.end(), same);
  return short_name == 0 || found == table.end() ? nullptr : &*found;
}

std::string underscored(std::string_view name) {
  std::string text{name};
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

std::string argument_name(const OptionSpec& option) {
  std::string text = option.short_name ? std::string{"-"} + option.short_name + "/" : std::string{};
  text += "--" + std::string{option.name};
  if (option.name.find('-') != std::string_view::npos) text += "/--" + underscored(option.name);
  return text;
}

std::string environment_name(const OptionSpec& option) {
  std::string text = "PET_" + underscored(option.name);
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

std::string nearest_name(std::string_view name, std::span<const std::string_view> names) {
  std::string_view nearest;
  std::size_t best = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string_view each : names) {
    std::size_t off = distance(name, each);
    if (name.size() >= 2 && each.starts_with(name)) off = 1;
    if (off < best) {
      best = off;
      nearest = each;
    }
  }
  return std::string{nearest};
}

std::string nearest_option(std::string_view name) {
  std::string typed{name.substr(0, name.find('='))};
  std::replace(typed.begin(), typed.end(), '_', '-');
  std::array<std::string_view, table.size()> names;
  std::transform(table.begin(), table.end(), names.begin(), [](const OptionSpec& option) { return option.name; });
  return nearest_name(typed, names);
}

}  // namespace torchup
