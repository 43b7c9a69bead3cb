#include "launcher/core/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <limits>

#include "launcher/core/machine/numa_binding.hpp"
#include "launcher/core/options/rendezvous_conf.hpp"
#include "launcher/core/plan/signals.hpp"
#include "launcher/core/text/text.hpp"
#include "rendezvous/core/text/hostlist.hpp"
#include "rendezvous/core/text/names.hpp"

namespace torchup {
namespace {

constexpr Port static_default_port{29500};

Error bad(std::string text) { return fail(errc::bad_value, std::move(text)); }

Duration seconds_of(double seconds) {
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>{std::min(seconds, std::chrono::duration<double>{duration_max}.count())});
}

/// A UUID as the decimal number that it is.
std::string decimal(std::string_view uuid) {
  std::string digits = "0";  // least significant first
  for (const char c : uuid) {
    if (c == '-') continue;
    int carry = c <= '9' ? c - '0' : c - 'a' + 10;
    for (char& digit : digits) {
      const int value = (digit - '0') * 16 + carry;
      digit = static_cast<char>('0' + value % 10);
      carry = value / 10;
    }
    for (; carry > 0; carry /= 10) digits += static_cast<char>('0' + carry % 10);
  }
  return {digits.rbegin(), digits.rend()};
}

/// Reads one plan from the options, step by step in torchrun's order.
class Planner {
 public:
  Planner(const OptionValues& options, const std::vector<std::string>& words, bool legacy, const Machine& machine)
      : options_{options}, words_{words}, legacy_{legacy}, machine_{machine} {}

  Result<LaunchConfig> make() {
    using Step = Result<> (Planner::*)();
    constexpr std::array<Step, 10> steps{&Planner::read_backend, &Planner::read_nodes,   &Planner::read_worker_count,
                                         &Planner::read_conf,    &Planner::read_output,  &Planner::read_devices,
                                         &Planner::read_stop,    &Planner::read_signals, &Planner::read_restarts,
                                         &Planner::read_program};
    for (const Step step : steps) {
      if (auto done = (this->*step)(); !done) return done.error();
    }
    return std::move(plan_);
  }

 private:
  Result<> read_backend() {
    RendezvousConfig& meeting = plan_.rendezvous;
    std::string backend = options_.text("rdzv-backend", "static");
    std::string endpoint = options_.text("rdzv-endpoint");
    meeting.run_id = RunId{options_.text("rdzv-id", "none")};
    meeting.local_addr = options_.text("local-addr");
    if (options_.has("allow")) {
      auto allowed = SourceList::read(options_.text("allow"));
      if (!allowed) return bad("--allow: " + allowed.error().message());
      meeting.allowed = *std::move(allowed);
    }
    auto nodes = parse_nodes();
    if (!nodes) return nodes.error();

    const bool plain =
        backend == "static" && endpoint.empty() && !options_.has("master-port") && plan_.terms.max_nodes == 1;
    if (options_.flag("standalone") || plain) {
      backend = "c10d";
      endpoint.clear();
      meeting.run_id = RunId{machine_.random_run_id()};
      if (options_.flag("standalone") && plan_.terms.max_nodes > 1) {
        return bad("--standalone means one node, but --nnodes=" + options_.text("nnodes") + " asks for more");
      }
    } else if (auto known = check_backend(backend); !known) {
      return known;
    } else if (backend == "static") {
      meeting.backend = Backend::static_;
      if (auto read = read_static(endpoint); !read) return read;
    } else if (auto parsed = parse_endpoint(endpoint); parsed) {
      meeting.endpoint = *parsed;
    } else {
      return parsed.error();
    }
    if (meeting.run_id.value().empty()) {
      meeting.run_id = RunId{decimal(machine_.random_run_id())};
      warn("config has no run_id, generated a random run_id: " + meeting.run_id.value());
    }
    if (const auto why = why_no_name(meeting.run_id.value()); !why.empty()) {
      return bad(fmt::format("--rdzv-id cannot be used: {}; take a short name", why));
    }
    if (meeting.backend != Backend::static_ && options_.integer("node-rank", 0).value() != 0) {
      warn("node_rank is only used for static rdzv_backend. It will be ignored for rdzv_backend=" + backend + ".");
    }
    return {};
  }

  static Result<> check_backend(const std::string& backend) {
    if (backend == "etcd" || backend == "etcd-v2") {
      return bad("--rdzv-backend=" + backend + " is not supported; use c10d, which needs no other server");
    }
    if (backend.empty()) return bad("The rendezvous backend name must be a non-empty string.");
    if (backend != "static" && backend != "c10d") {
      return bad("The rendezvous backend '" + backend +
                 "' is not registered. Did you forget to call `register`? There are c10d and static.");
    }
    return {};
  }

  Result<> read_static(const std::string& given) {
    RendezvousConfig& meeting = plan_.rendezvous;
    std::string endpoint = given;
    if (endpoint.empty()) {
      const std::int64_t port = options_.integer("master-port", static_default_port.value()).value();
      const std::string host = options_.text("master-addr", "127.0.0.1");
      if (port < 0 || port > std::numeric_limits<std::uint16_t>::max()) {
        return bad("--master-port=" + std::to_string(port) + " is not a port, which goes from 0 to 65535");
      }
      meeting.endpoint = Endpoint{host, Port{static_cast<std::uint16_t>(port)}};
    } else {
      if (endpoint.find(':') == std::string::npos) {
        return bad("port is missing in endpoint: " + endpoint + ". Try to specify --master-port");
      }
      auto parsed = parse_endpoint(endpoint, static_default_port);
      if (!parsed) return parsed.error();
      meeting.endpoint = *parsed;
    }
    const std::int64_t rank = options_.integer("node-rank", 0).value();
    if (rank < 0 || rank >= plan_.terms.max_nodes) {
      return bad("--node-rank=" + std::to_string(rank) + " must be from 0 to " +
                 std::to_string(plan_.terms.max_nodes - 1) + ", one less than --nnodes");
    }
    meeting.group_rank = GroupRank{static_cast<int>(rank)};
    plan_.terms.min_nodes = plan_.terms.max_nodes;
    return {};
  }

  Result<> parse_nodes() {
    const std::string text = options_.text("nnodes", "1:1");
    std::vector<std::int64_t> fields;
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(':', begin), text.size());
      const std::string field = text.substr(begin, end - begin);
      begin = end + 1;
      const auto number = python_int(field);
      if (!number) return bad("--nnodes=" + text + ": invalid literal for int() with base 10: '" + field + "'");
      fields.push_back(*number);
    }
    if (fields.size() > 2) return bad("nnodes=" + text + " is not in \"MIN:MAX\" format");
    const std::int64_t least = fields.front();
    const std::int64_t most = fields.back();
    if (least > nodes_max) return bad(fmt::format("--nnodes={}: a job has {} nodes at most", text, nodes_max));
    if (least < 1 || least > most) {
      return bad("min_nodes must be > 0 and <= max_nodes, got min_nodes=" + std::to_string(least) +
                 ", max_nodes=" + std::to_string(most));
    }
    plan_.terms.min_nodes = static_cast<int>(least);
    plan_.terms.max_nodes = static_cast<int>(std::min<std::int64_t>(most, nodes_max));
    return {};
  }

  Result<> read_nodes() {
    auto restarts = options_.integer("max-restarts", 0);
    if (!restarts) return restarts.error();
    if (*restarts < 0) return bad("max_restarts must be >= 0");
    plan_.terms.max_restarts = static_cast<int>(std::min<std::int64_t>(*restarts, restarts_max));
    plan_.role = options_.text("role", "default");
    if (auto lease = options_.number("lease", 10); !lease) {
      return lease.error();
    } else if (*lease < 0.1) {
      return bad("--lease must be at least 0.1 seconds");
    } else {
      plan_.terms.lease = seconds_of(*lease);
    }
    if (auto order = read_order(); !order) return order;
    plan_.set_socket_ifname = options_.flag("set-socket-ifname");
    const std::string same = options_.text("same-world", "warn");
    plan_.terms.same_world = same == "off" ? SameWorld::off : same == "fail" ? SameWorld::fail : SameWorld::warn;
    if (plan_.rendezvous.backend == Backend::c10d && plan_.terms.max_nodes > 1 &&
        options_.text("rdzv-endpoint").empty()) {
      warn("master_addr is only used for static rdzv_backend and when rdzv_endpoint is not specified.");
    }
    return {};
  }

  /// Who is expected, and in which order ranks are given.
  Result<> read_order() {
    JobTerms& terms = plan_.terms;
    auto multiple = options_.integer("nnodes-multiple-of", 1);
    if (!multiple) return multiple.error();
    if (*multiple < 1) return bad("--nnodes-multiple-of must be >= 1");
    if (*multiple > terms.max_nodes) {
      return bad("--nnodes-multiple-of=" + std::to_string(*multiple) + " is more than --nnodes allows, " +
                 std::to_string(terms.max_nodes));
    }
    terms.nodes_multiple_of = static_cast<int>(*multiple);
    terms.hostlist = options_.text("expect-hosts");
    if (terms.hostlist.empty() && machine_.variable("SLURM_JOB_NUM_NODES") == std::to_string(terms.max_nodes)) {
      terms.hostlist = machine_.variable("SLURM_JOB_NODELIST").value_or("");
    }
    if (const auto hosts = expand_hostlist(terms.hostlist); !hosts) {
      if (options_.has("expect-hosts")) return bad("--expect-hosts=" + terms.hostlist + ": " + hosts.error().message());
      terms.hostlist.clear();
    }
    const std::string order = options_.text("rank-order", "address");
    terms.rank_order = order == "join"       ? RankOrder::join
                       : order == "hostlist" ? RankOrder::hostlist
                                             : RankOrder::address;
    if (terms.rank_order == RankOrder::hostlist && terms.hostlist.empty()) {
      return bad("--rank-order=hostlist needs a list of hosts: --expect-hosts, or a Slurm job of --nnodes nodes");
    }
    return {};
  }

  Result<> read_worker_count() {
    auto rule = parse_worker_count(options_.text("nproc-per-node", "1"));
    if (!rule) return rule.error();
    plan_.virtual_local_rank = options_.flag("virtual-local-rank");
    const auto cuda_visible = machine_.variable("CUDA_VISIBLE_DEVICES");
    Gpus gpus;
    std::vector<Device> devices;
    const bool by_name = options_.has("gpus");
    if (by_name || rule->needs_gpus() || options_.has("numa-binding")) {
      gpus = machine_.gpus();
      devices = visible_devices(gpus, cuda_visible);
    }
    if (by_name) {
      auto chosen = choose_devices(options_.text("gpus"), gpus, devices);
      if (!chosen) return chosen.error();
      devices = *std::move(chosen);
      plan_.variables.emplace_back("CUDA_VISIBLE_DEVICES", to_variable(devices));
    }
    const OmpRule contract;
    auto omp_rule = options_.has("omp") ? parse_omp(options_.text("omp")) : Result<OmpRule>{contract};
    if (!omp_rule) return omp_rule.error();
    const bool numa = options_.has("numa-binding");
    const bool topology = numa || omp_rule->kind == OmpRule::Kind::automatic;
    Cpus cpus;
    const bool needs_cpus =
        topology || rule->kind == WorkerCountRule::Kind::cpu || rule->kind == WorkerCountRule::Kind::automatic;
    if (needs_cpus) {
      auto read = machine_.cpus(topology);
      if (!read) return read.error();
      cpus = *std::move(read);
    }
    auto count = worker_count(*rule, cpus, gpus, devices, plan_.virtual_local_rank);
    if (!count) return count.error();
    plan_.local_world_size = *count;
    if (by_name || rule->needs_gpus()) {
      const auto shortage =
          gpu_shortage(*count, static_cast<int>(devices.size()), by_name, options_.flag("oversubscribe"));
      if (shortage && shortage->refuse) return fail(errc::refused, shortage->text);
      if (shortage) warn(shortage->text);
    }
    if (numa) {
      if (auto bound = bind_workers(cpus, gpus, devices); !bound) return bound;
    }
    const bool inherited = machine_.variable("OMP_NUM_THREADS").has_value();
    const int cores = needs_cpus ? usable_cores(cpus, cpus.allowed) : 1;
    const OmpChoice omp = omp_num_threads(*omp_rule, inherited, *count, cores);
    if (omp.value) plan_.variables.emplace_back("OMP_NUM_THREADS", *omp.value);
    if (omp.warn) {
      warn("OMP_NUM_THREADS=1 for each worker; set it, or --omp auto, for more threads");
    }
    return {};
  }

  Result<> bind_workers(const Cpus& cpus, const Gpus& gpus, const std::vector<Device>& devices) {
    auto mode = parse_numa_binding(options_.text("numa-binding"));
    if (!mode) return mode.error();
    std::vector<int> nodes;
    for (const Device& device : devices) nodes.push_back(gpus.list.at(device.gpu).numa_node);
    for (int local_rank = 0; local_rank < plan_.local_world_size; ++local_rank) {
      auto bound = numa_cpus(*mode, LocalRank{local_rank}, cpus, nodes);
      if (!bound) return bound.error();
      plan_.worker_cpus.push_back(*std::move(bound));
    }
    return {};
  }

  Result<> read_conf() {
    const std::string text = options_.text("rdzv-conf");
    const bool is_static = plan_.rendezvous.backend == Backend::static_;
    const auto conf = is_static ? read_static_conf(text) : read_c10d_conf(text);
    if (!conf) return conf.error();
    if (is_static) plan_.terms.join_timeout = std::chrono::seconds{900};
    if (conf->is_host) plan_.rendezvous.is_host = *conf->is_host;
    if (conf->join_timeout) plan_.terms.join_timeout = *conf->join_timeout;
    if (conf->last_call) plan_.terms.last_call = *conf->last_call;
    if (conf->lease) plan_.terms.lease = *conf->lease;
    return {};
  }

  Result<> read_output() {
    OutputOptions& output = plan_.output;
    output.redirects = options_.text("redirects", "0");
    output.tee = options_.text("tee", "0");
    output.local_ranks_filter = options_.text("local-ranks-filter");
    output.log_dir = options_.text("log-dir");
    output.line_prefix_template = options_.text("log-line-prefix-template");
    if (output.line_prefix_template.empty()) {
      output.line_prefix_template = machine_.variable("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("");
    }
    if (options_.has("duplicate-stdout-filters")) {
      output.duplicate_stdout_filters = comma_list(options_.text("duplicate-stdout-filters"));
    }
    if (options_.has("duplicate-stderr-filters")) {
      output.duplicate_stderr_filters = comma_list(options_.text("duplicate-stderr-filters"));
    }
    const auto bytes = options_.integer("log-max-bytes", 0);
    if (!bytes) return bytes.error();
    if (*bytes < 0) return bad("--log-max-bytes must be >= 0");
    output.log_max_bytes = static_cast<std::uint64_t>(*bytes);
    output.capture = !options_.flag("no-capture");
    if (options_.has("logs-specs")) {
      return bad("Could not find entrypoint under 'torchrun.logs_specs[" + options_.text("logs-specs") + "]' key");
    }
    auto checked =
        make_output_plan(output, plan_.local_world_size, plan_.role, machine_.host, plan_.rendezvous.run_id.value());
    if (!checked) return checked.error();
    output.quiet = options_.flag("quiet");
    output.events_file = options_.text("events");
    output.result_file = options_.text("result-file");
    plan_.event_log_handler = options_.text("event-log-handler", "null");
    if (plan_.event_log_handler != "null" && plan_.event_log_handler != "console" &&
        plan_.event_log_handler != "dynamic_rendezvous") {
      return bad("--event-log-handler=" + plan_.event_log_handler + ": there are null, console and dynamic_rendezvous");
    }
    read_watchdog();
    // The handler is one of Python's loggers, at INFO.
    const std::string level = machine_.variable("LOGLEVEL").value_or("");
    if (level == "WARNING" || level == "ERROR" || level == "CRITICAL") plan_.event_log_handler = "null";
    return {};
  }

  void read_watchdog() {
    if (machine_.variable("TORCHELASTIC_ENABLE_FILE_TIMER") == "1") {
      plan_.timer_file = machine_.variable("TORCHELASTIC_TIMER_FILE").value_or("");
      if (plan_.timer_file.empty()) {
        const std::string folder = machine_.variable("TMPDIR").value_or("");
        plan_.timer_file = (folder.empty() ? "/tmp" : folder) + "/watchdog_timer_" + machine_.random_run_id();
      }
      plan_.variables.emplace_back("TORCHELASTIC_TIMER_FILE", plan_.timer_file);
    }
    if (const auto text = machine_.variable("TORCHELASTIC_HEALTH_CHECK_PORT")) {
      const auto port = python_int(*text);
      if (port && *port >= 0 && *port <= std::numeric_limits<std::uint16_t>::max()) {
        plan_.health_port = Port{static_cast<std::uint16_t>(*port)};
      } else {
        warn("Invalid healthcheck port value: '" + *text + "', expecting integer. Not starting healthcheck server.");
      }
    }
  }

  Result<> read_devices() {
    if (!plan_.virtual_local_rank) return {};
    std::optional<std::string> cuda = machine_.variable("CUDA_VISIBLE_DEVICES");
    for (const auto& [name, value] : plan_.variables) {
      if (name == "CUDA_VISIBLE_DEVICES") cuda = value;
    }
    const auto hip = machine_.variable("HIP_VISIBLE_DEVICES");
    for (int local_rank = 0; local_rank < plan_.local_world_size; ++local_rank) {
      auto variables = virtual_rank_variables(LocalRank{local_rank}, cuda, hip);
      if (!variables) return variables.error();
      plan_.worker_variables.push_back(*std::move(variables));
    }
    std::erase_if(plan_.variables, [](const auto& variable) { return variable.first == "CUDA_VISIBLE_DEVICES"; });
    return {};
  }

  Result<> read_stop() {
    std::optional<std::int64_t> grace;
    if (options_.has("shutdown-timeout")) {
      auto given = options_.integer("shutdown-timeout", 30);
      if (!given) return given.error();
      if (*given < 0) return bad("shutdown_timeout must be non-negative, got " + std::to_string(*given));
      grace = *given;
    } else if (const auto variable = machine_.variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")) {
      const auto value = python_int(*variable);
      if (!value) {
        return bad("TORCH_ELASTIC_SHUTDOWN_TIMEOUT: invalid literal for int() with base 10: '" + *variable + "'");
      }
      grace = std::max<std::int64_t>(0, *value);
    }
    if (grace) plan_.stop_grace = seconds_of(static_cast<double>(*grace));
    auto timeout = options_.number("timeout", 0);
    if (!timeout) return timeout.error();
    if (*timeout < 0) return bad("--timeout must be >= 0");
    plan_.timeout = seconds_of(*timeout);
    auto heartbeat = options_.number("heartbeat-timeout", 0);
    if (!heartbeat) return heartbeat.error();
    if (*heartbeat < 0) return bad("--heartbeat-timeout must be >= 0");
    plan_.heartbeat_timeout = seconds_of(*heartbeat);
    const auto stuck = python_float(machine_.variable("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT").value_or("0"));
    if (stuck && *stuck > 0) plan_.stuck_timeout = seconds_of(*stuck);
    auto interval = options_.number("monitor-interval", 0.1);
    if (!interval) return interval.error();
    if (*interval <= 0) return bad("--monitor-interval must be > 0");
    plan_.propagate_exit_code = options_.flag("propagate-exit-code");
    return {};
  }

  Result<> read_signals() {
    constexpr std::string_view by_default = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
    plan_.signals_to_handle = options_.text("signals-to-handle", by_default);
    plan_.end_signals_listed = options_.has("signals-to-handle");
    for (const std::string& name : plain_list(plan_.signals_to_handle)) {
      const auto number = name.starts_with("SIG") ? signal_number(name) : std::nullopt;
      if (number && (*number == SIGKILL || *number == SIGSTOP)) {
        return bad("--signals-to-handle: " + name + " cannot be caught");
      }
      if (!number || !is_for_users(*number)) {
        warn("Failed to register signal handler for " + name);
      } else {
        plan_.end_signals.push_back(*number);
      }
    }
    for (const std::string& name : plain_list(options_.text("forward-signals", "USR1,USR2"))) {
      if (name.empty()) continue;
      const auto number = signal_number(name);
      if (!number || !is_for_users(*number)) {
        return bad("--forward-signals: " + name + " is no signal that can be passed on; USR1, USR2, ALRM can");
      }
      plan_.forward_signals.push_back(*number);
    }
    for (const std::string& name : plain_list(options_.text("drain-signals", ""))) {
      if (name.empty()) continue;
      const auto number = signal_number(name);
      if (!number || !is_for_users(*number))
        return bad("--drain-signals: " + name + " is no signal that can ask for this; TERM, USR1, USR2 can");
      plan_.drain_signals.push_back(*number);
    }
    return {};
  }

  Result<> read_restarts() {
    auto window = options_.number("restart-window", 0);
    if (!window) return window.error();
    if (*window < 0) return bad("--restart-window must be >= 0");
    plan_.terms.restart_window = seconds_of(*window);
    if (!options_.has("restart-backoff")) return {};
    const std::string text = options_.text("restart-backoff");
    const auto dots = text.find("..");
    const auto least = python_float(text.substr(0, dots));
    const auto most = dots == std::string::npos ? least : python_float(text.substr(dots + 2));
    if (!least || !most || *least < 0 || *most < *least) {
      return bad("--restart-backoff=" + text + " is not MIN..MAX in seconds, for instance 0.5..30");
    }
    plan_.restart_backoff = {seconds_of(*least), seconds_of(*most)};
    return {};
  }

  Result<> read_program() {
    plan_.share_store =
        machine_.variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1" || plan_.rendezvous.backend == Backend::static_;
    ProgramRequest request;
    request.words = words_;
    request.module = options_.flag("module");
    request.no_python = options_.flag("no-python");
    request.run_path = options_.flag("run-path");
    request.python = machine_.variable("PYTHON_EXEC").value_or("");
    request.pass_local_rank = legacy_;
    if (!legacy_) plan_.parent_error_file = machine_.variable("TORCHELASTIC_ERROR_FILE").value_or("");
    auto program = choose_program(request, machine_.program);
    if (!program) return program.error();
    plan_.program = *std::move(program);
    return {};
  }

  /// Comma list without escapes, entries stripped.
  static std::vector<std::string> plain_list(std::string_view text) {
    std::vector<std::string> entries;
    for (const std::string_view entry : split(text, ',')) entries.emplace_back(stripped(entry));
    return entries;
  }

  void warn(std::string text) { plan_.warnings.push_back(std::move(text)); }

  const OptionValues& options_;
  const std::vector<std::string>& words_;
  const bool legacy_;
  const Machine& machine_;
  LaunchConfig plan_;
};

}  // namespace

Result<LaunchConfig> make_plan(const OptionValues& options, const std::vector<std::string>& words, bool legacy,
                               const Machine& machine) {
  return Planner{options, words, legacy, machine}.make();
}

}  // namespace torchup
