#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

#include "launcher/core/options/event_names.hpp"
#include "launcher/core/plan/plan_steps.hpp"
#include "launcher/core/text/python_numbers.hpp"
#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

/// torchrun's options.
Result<> read_streams(const PlanSource& source, OutputOptions& output) {
  const OptionValues& options = source.options;
  output.redirects = options.text("redirects", "0");
  output.tee = options.text("tee", "0");
  output.local_ranks_filter = options.text("local-ranks-filter");
  output.log_dir = options.text("log-dir");
  output.line_prefix_template = options.text("log-line-prefix-template");
  if (output.line_prefix_template.empty()) {
    output.line_prefix_template = source.machine.variable("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("");
  }
  if (options.has("duplicate-stdout-filters")) {
    output.duplicate_stdout_filters = comma_list(options.text("duplicate-stdout-filters"));
  }
  if (options.has("duplicate-stderr-filters")) {
    output.duplicate_stderr_filters = comma_list(options.text("duplicate-stderr-filters"));
  }
  const auto bytes = options.integer("log-max-bytes", 0);
  if (!bytes) return bytes.error();
  if (*bytes < 0) return bad("--log-max-bytes must be >= 0");
  output.log_max_bytes = static_cast<std::uint64_t>(*bytes);
  output.capture = !options.flag("no-capture");
  if (!options.has("logs-specs")) return {};
  return bad(fmt::format("Could not find entrypoint under 'torchrun.logs_specs[{}]' key", options.text("logs-specs")));
}

Result<> read_event_handler(const PlanSource& source, LaunchConfig& plan) {
  std::string& handler = plan.event_log_handler;
  handler = source.options.text("event-log-handler", "null");
  if (handler != "null" && handler != "console" && handler != "dynamic_rendezvous") {
    return bad(fmt::format("--event-log-handler={}: there are null, console and dynamic_rendezvous", handler));
  }
  // It is one of Python's loggers, at INFO.
  const std::string level = source.machine.variable("LOGLEVEL").value_or("");
  if (level == "WARNING" || level == "ERROR" || level == "CRITICAL") handler = "null";
  return {};
}

void read_watchdog(const Machine& machine, LaunchConfig& plan) {
  if (machine.variable("TORCHELASTIC_ENABLE_FILE_TIMER") != "1") return;
  plan.timer_file = machine.variable("TORCHELASTIC_TIMER_FILE").value_or("");
  if (plan.timer_file.empty()) {
    const std::string folder = machine.variable("TMPDIR").value_or("");
    plan.timer_file = fmt::format("{}/watchdog_timer_{}", folder.empty() ? "/tmp" : folder, machine.random_run_id());
  }
  plan.variables.emplace_back("TORCHELASTIC_TIMER_FILE", plan.timer_file);
}

bool is_in_pod(const Machine& machine) { return !machine.variable("KUBERNETES_SERVICE_HOST").value_or("").empty(); }

void read_health_port(const Machine& machine, LaunchConfig& plan) {
  const auto text = machine.variable("TORCHELASTIC_HEALTH_CHECK_PORT");
  if (!text) return;
  const auto port = python_int(*text);
  if (port && *port >= 0 && *port <= std::numeric_limits<std::uint16_t>::max()) {
    plan.health_port = Port{static_cast<std::uint16_t>(*port)};
  } else {
    warn(plan, fmt::format("Invalid healthcheck port value: '{}', expecting integer. Not starting healthcheck server.",
                           *text));
  }
}

/// Kubernetes tells of a container's end what stands there.
std::string termination_log(const PlanSource& source) {
  constexpr const char* in_pods = "/dev/termination-log";
  if (source.options.has("termination-log")) return source.options.text("termination-log");
  return is_in_pod(source.machine) && source.machine.writable(in_pods) ? in_pods : "";
}

LedgerTelling ledger_telling(const OptionValues& options) {
  const std::string word = options.text("ledger", "auto");
  return word == "always" ? LedgerTelling::always : word == "never" ? LedgerTelling::never : LedgerTelling::automatic;
}

Result<> read_event_hook(const OptionValues& options, EventHookOptions& hook) {
  hook.command = options.text("on-event");
  if (hook.command.size() > hook_command_bytes_max) return bad("--on-event: the command is longer than 64 KiB");
  const std::string kinds = options.text("on-event-kinds", default_hook_kinds);
  for (const std::string_view kind : split(kinds, ',')) {
    hook.kinds.emplace_back(stripped(kind));
    if (is_event_name(hook.kinds.back())) continue;
    return bad(fmt::format("--on-event-kinds: there is no event {}; there are {}", hook.kinds.back(),
                           fmt::join(event_names(), ", ")));
  }
  return {};
}

}  // namespace

LogWords log_words(const OptionValues& options) {
  return {options.text("log-level", options.flag("quiet") ? "error" : "info"), options.text("log-format", "text")};
}

Result<> plan_output(const PlanSource& source, LaunchConfig& plan) {
  const auto& [options, words, legacy, machine] = source;
  OutputOptions& output = plan.output;
  if (auto read = read_streams(source, output); !read) return read;
  const auto checked =
      make_output_plan(output, plan.local_world_size, plan.role, machine.host, plan.rendezvous.run_id.value());
  if (!checked) return checked.error();
  output.log = log_words(options);
  output.events_file = options.text("events");
  output.result_file = options.text("result-file");
  output.ledger = ledger_telling(options);
  if (auto read = read_event_hook(options, output.on_event); !read) return read;
  output.termination_log = termination_log(source);
  if (auto read = read_event_handler(source, plan); !read) return read;
  read_watchdog(machine, plan);
  read_health_port(machine, plan);
  plan.in_pod = is_in_pod(machine);
  return {};
}

}  // namespace torchup
