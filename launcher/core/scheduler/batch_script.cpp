#include "launcher/core/scheduler/batch_script.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "launcher/core/text/json.hpp"
#include "launcher/core/text/python_numbers.hpp"
#include "launcher/core/text/text.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

constexpr std::string_view own_option = "print-batch-script";

struct Nodes {
  int least = 1;
  int most = 1;
  bool said = false;
  [[nodiscard]] bool elastic() const { return least < most; }
};

Result<Nodes> read_nodes(const OptionValues& options) {
  if (!options.has("nnodes")) return Nodes{};
  const std::string text = options.text("nnodes");
  const auto fields = split(text, ':');
  const auto least = python_int(fields.front()), most = python_int(fields.back());
  if (fields.size() > 2 || !least || !most || *least < 1 || *most < *least || *most > nodes_max) {
    return fail(errc::bad_value, fmt::format("--nnodes={} is not N or MIN:MAX, from 1 to {}", text, nodes_max));
  }
  return Nodes{static_cast<int>(*least), static_cast<int>(*most), true};
}

/// Those of the command line itself.
OptionValues typed_options(const OptionValues& options) {
  OptionValues typed;
  for (const OptionSpec& option : option_table()) {
    if (option.name == own_option || options.source(option.name) != fmt::format("--{}", option.name)) continue;
    typed.set(option.name, options.text(option.name));
  }
  return typed;
}

/// Agents on hosts are started where there is no scheduler, and there is a queue to come back to in Slurm alone.
Result<> check_place(std::string_view scheduler, const OptionValues& options) {
  constexpr std::array<std::string_view, 4> elsewhere{"hosts", "hostfile", "host-discovery", "requeue"};
  for (const std::string_view name : elsewhere) {
    if (!options.has(name) || (name == "requeue" && scheduler == "slurm")) continue;
    return fail(errc::bad_value, fmt::format("--print-batch-script={}: --{} has no meaning there", scheduler, name));
  }
  return {};
}

/// Whether torchup would take the first word for an option of its own, or a second one `--` away.
bool is_mistaken(const std::vector<std::string>& program) {
  return !program.empty() && (program.front().starts_with('-') || (program.size() > 1 && program[1] == "--"));
}

/// Our own words, then the program's.
std::vector<std::string> command_line(const OptionValues& options, const std::vector<std::string>& program) {
  std::vector<std::string> words{"torchup"};
  for (const OptionSpec& option : option_table()) {
    if (!options.has(option.name)) continue;
    const std::string name = "--" + std::string{option.name};
    words.push_back(option.kind == ValueKind::flag ? name : name + "=" + options.text(option.name));
  }
  if (is_mistaken(program)) words.emplace_back("--");
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

/// GPUs of a node, where --nproc-per-node is a number.
std::optional<std::int64_t> workers_per_node(const OptionValues& options) {
  return python_int(options.text("nproc-per-node"));
}

std::string in_shell(const std::string& word) {
  std::string quoted = "'";
  for (const char letter : word) quoted += letter == '\'' ? std::string{"'\\''"} : std::string{letter};
  return quoted + "'";
}

/// A word of a container's command. JSON's strings are YAML's, but for characters beyond U+FFFF, whose two escapes
/// there YAML refuses: they stand as they are. Of two dollar signs Kubernetes makes one, and of $(NAME) a variable.
///
/// Errors: errc::bad_value for what is not UTF-8.
Result<std::string> in_manifest(const std::string& word) {
  constexpr std::size_t beyond = 4;
  std::string quoted;
  for (std::string_view rest = word; !rest.empty();) {
    const Character next = first_character(rest);
    if (!next.valid) {
      return fail(errc::bad_value, fmt::format("--print-batch-script=kubernetes: '{}' is not UTF-8, and YAML and JSON "
                                               "hold no other text",
                                               printable_start(word)));
    }
    const std::string letter{rest.substr(0, next.length)};
    rest.remove_prefix(next.length);
    if (letter == "$") {
      quoted += "$$";
    } else if (next.length == beyond) {
      quoted += letter;
    } else {
      const std::string escaped = ordered_json(letter).dump(-1, ' ', true);
      quoted += escaped.substr(1, escaped.size() - 2);
    }
  }
  return "\"" + quoted + "\"";
}

std::string slurm_script(const OptionValues& options, const std::vector<std::string>& program, const Nodes& nodes) {
  std::string text = "#!/bin/bash\n";
  text += nodes.said ? fmt::format("#SBATCH --nodes={}\n", nodes.most) : "##SBATCH --nodes=N  # --nnodes did not say\n";
  text += "#SBATCH --ntasks-per-node=1\n# What is wanted of these, without the first #:\n";
  const auto workers = workers_per_node(options);
  text += fmt::format("##SBATCH --gpus-per-node={}\n", workers ? fmt::format("{}", *workers) : "N");
  text += "##SBATCH --exclusive  # all CPUs of the nodes; without it, or --cpus-per-task=N, one\n";
  text += "##SBATCH --time=HH:MM:SS\n##SBATCH --partition=NAME\n";
  if (nodes.elastic()) text += "#SBATCH --no-kill\n";
  if (options.has("requeue")) text += "#SBATCH --requeue\n#SBATCH --open-mode=append\n";
  // Agents end the job themselves, each in its time: some save while the first has left with its code.
  text += nodes.elastic() ? "\nsrun --no-kill" : "\nsrun";
  text += " --kill-on-bad-exit=0";
  for (const std::string& word : command_line(options, program)) text += " " + in_shell(word);
  return text + "\n";
}

constexpr std::string_view service = R"(apiVersion: v1
kind: Service
metadata:
  name: torchup-job  # yours; the Job's name and subdomain are the same
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    batch.kubernetes.io/job-name: torchup-job
---
)";

constexpr std::string_view job = R"(apiVersion: batch/v1
kind: Job
metadata:
  name: torchup-job
spec:
  completionMode: Indexed
  completions: {nodes}{nodes_comment}
  parallelism: {nodes}
  backoffLimit: 6
  podFailurePolicy:
    rules:
    - action: Ignore
      onPodConditions:
      - type: DisruptionTarget
        status: "True"
    - action: Ignore
      onExitCodes:
        containerName: torchup
        operator: In
        values: [75]
    - action: FailJob
      onExitCodes:
        containerName: torchup
        operator: In
        values: [1, 2, 65, 68, 70]
  template:
    spec:
      restartPolicy: Never
      subdomain: torchup-job
      terminationGracePeriodSeconds: {patience}
      containers:
      - name: torchup
        image: IMAGE
        command: [{command}]
        terminationMessagePolicy: FallbackToLogsOnError
        env:
        - name: TORCHELASTIC_HEALTH_CHECK_PORT
          value: "8080"
        startupProbe:
          httpGet:
            path: /healthz
            port: 8080
          periodSeconds: 5
          failureThreshold: 60
        livenessProbe:
          httpGet:
            path: /healthz
            port: 8080
          periodSeconds: 10
        volumeMounts:
        - name: shm
          mountPath: /dev/shm
        # resources:
        #   limits:
        #     nvidia.com/gpu: {gpus}
      volumes:
      - name: shm
        emptyDir:
          medium: Memory
)";

/// How long a pod has after SIGTERM: what the workers have of it, and what their end takes.
std::int64_t patience(const OptionValues& options) {
  constexpr std::int64_t workers = 25, rest = 5, most = std::int64_t{1} << 30;
  const auto given = options.integer("shutdown-timeout", workers);
  return std::clamp(given ? *given : workers, workers, most) + rest;
}

Result<std::string> kubernetes_manifest(const OptionValues& options, const std::vector<std::string>& program,
                                        const Nodes& nodes) {
  std::string command;
  for (const std::string& word : command_line(options, program)) {
    const auto quoted = in_manifest(word);
    if (!quoted) return quoted.error();
    command += (command.empty() ? "" : ", ") + *quoted;
  }
  const auto workers = workers_per_node(options);
  return std::string{service} + fmt::format(job, fmt::arg("nodes", nodes.most),
                                            fmt::arg("nodes_comment", nodes.said ? "" : "  # --nnodes did not say"),
                                            fmt::arg("command", command), fmt::arg("patience", patience(options)),
                                            fmt::arg("gpus", workers ? fmt::format("{}", *workers) : "N"));
}

}  // namespace

Result<std::string> batch_script(std::string_view scheduler, const OptionValues& options,
                                 const std::vector<std::string>& program) {
  const OptionValues typed = typed_options(options);
  const auto nodes = read_nodes(typed);
  if (!nodes) return nodes.error();
  if (auto goes = check_place(scheduler, typed); !goes) return goes.error();
  if (scheduler == "slurm") return slurm_script(typed, program, *nodes);
  if (scheduler == "kubernetes") return kubernetes_manifest(typed, program, *nodes);
  return fail(errc::bad_value,
              fmt::format("--print-batch-script={}: there is one for slurm and for kubernetes", scheduler));
}

}  // namespace torchup
