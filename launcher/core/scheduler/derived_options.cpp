#include "launcher/core/scheduler/derived_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "launcher/core/text/python_numbers.hpp"
#include "launcher/core/text/text.hpp"
#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup {
namespace {

constexpr const char* short_grace = "25";

/// MIN and MAX of --nnodes, where they are numbers: it is checked by whoever plans.
struct NodeRange {
  std::int64_t least = 1;
  std::int64_t most = 1;
};
NodeRange node_range(const OptionValues& options) {
  const std::string text = options.text("nnodes", "1");
  const auto fields = split(text, ':');
  return {python_int(fields.front()).value_or(1), python_int(fields.back()).value_or(1)};
}

class Derivation {
 public:
  Derivation(const Allocation& found, OptionValues& options) : found_{found}, options_{options} {
    part_.name = found.scheduler;
    part_.slurm_step = found.each && found.scheduler == "slurm";
    if (found.hosts) {
      part_.hosts = found.hosts->value;
      part_.hosts_from = found.hosts->from;
    }
    if (found.end) options.derive("deadline", fmt::format("{}", found.end->value), found.end->from);
  }

  Result<SchedulerPart> run(const std::function<int()>& visible_gpus) {
    const bool one_asked = options_.given("nnodes") && node_range(options_).most == 1;
    const bool alone = options_.flag("standalone") || one_asked;
    count_workers(alone, visible_gpus);
    if (alone) return part_;
    if (!found_.each) {
      look_at_other_nodes();
      return part_;
    }
    part_.tasks = found_.tasks.value;
    part_.task = found_.task;
    part_.step = found_.run_id ? found_.run_id->value : "";
    part_.own_run = found_.own_run;
    part_.gpus = found_.gpus_of_node;
    if (auto counted = count_nodes(); !counted) return counted.error();
    if (found_.run_id) options_.derive("rdzv-id", found_.run_id->value, found_.run_id->from);
    if (node_range(options_).most == 1) {
      if (options_.text("rdzv-endpoint").empty()) return part_;
      if (auto met = meet(); !met) return met.error();
      return std::move(part_);
    }
    if (found_.node) {
      part_.node = found_.node->value;
      part_.node_from = found_.node->from;
      options_.derive("node-rank", fmt::format("{}", found_.node->value), found_.node->from);
      options_.derive("rank-order", std::string{by_index}, found_.node->from);
    }
    if (auto met = meet(); !met) return met.error();
    expect_hosts();
    return std::move(part_);
  }

 private:
  void count_workers(bool alone, const std::function<int()>& visible_gpus) {
    if (options_.has("nproc-per-node")) return;
    if (!alone && found_.tasks.value > 1) {
      options_.derive("nproc-per-node", fmt::format("{}", found_.tasks.value), found_.tasks.from);
      return;
    }
    if (!found_.each && part_.hosts.size() > 1) return;
    if (options_.has("gpus")) {
      derive_workers_of_gpus(options_);
    } else if (found_.gpus) {
      options_.derive("nproc-per-node", fmt::format("{}", std::max(1, found_.gpus->value)), found_.gpus->from);
    } else if (found_.gpus_visible) {
      if (const int gpus = visible_gpus(); gpus > 0) {
        options_.derive("nproc-per-node", fmt::format("{}", gpus), "visible GPUs");
      }
    }
  }

  /// A job with several nodes in which this process is the only one, for all that is known.
  void look_at_other_nodes() {
    const auto most = node_range(options_).most;
    if (most > 1 && static_cast<std::size_t>(most) == part_.hosts.size()) derive_hosts();
    if (options_.has("nnodes") || part_.hosts.size() < 2) return;
    const bool slurm = found_.scheduler == "slurm";
    const std::string remedy = slurm ? "srun torchup … runs on all" : "torchup --hosts auto … runs on all";
    part_.warnings.push_back(fmt::format("this {} job has {} nodes and this runs on {} alone; {}",
                                         slurm ? "Slurm" : found_.scheduler, part_.hosts.size(), found_.own_name,
                                         remedy));
  }

  Result<> count_nodes() {
    if (!found_.nodes) return {};
    options_.derive("nnodes", fmt::format("{}", found_.nodes->value), found_.nodes->from);
    if (node_range(options_).least <= found_.nodes->value) return {};
    return fail(errc::bad_value,
                fmt::format("{}={}: {} says that there are {} nodes ({})", options_.source("nnodes"),
                            options_.text("nnodes"), found_.scheduler, found_.nodes->value, found_.nodes->from));
  }

  Result<> meet() {
    const std::string given = options_.text("rdzv-endpoint");
    if (!given.empty() && !given.starts_with(':')) {
      options_.derive("rdzv-backend", "c10d", options_.source("rdzv-endpoint"));
      return {};
    }
    if (given.empty() && options_.has("master-addr") && options_.text("rdzv-backend", "static") == "static") return {};
    if (!found_.first_host) return nobody_knows();
    const Told<std::string>& first = *found_.first_host;
    part_.is_host = found_.node && found_.node->value == 0;
    if (*part_.is_host && is_not_here(first)) return somewhere_else(first);
    if (!given.empty()) {
      const std::string source = options_.source("rdzv-endpoint");
      options_.set("rdzv-endpoint", bracketed(first.value) + given, fmt::format("{}, {}", source, first.from));
    } else {
      const auto [port, from] = choose_port();
      options_.derive("rdzv-endpoint", to_string(Endpoint{first.value, port}), first.from + from);
    }
    options_.derive("rdzv-backend", "c10d", options_.source("rdzv-endpoint"));
    return {};
  }

  /// The first port, and what is to be said of where it came from.
  std::pair<Port, std::string> choose_port() {
    const auto own = options_.has("master-port") ? options_.integer("master-port", 0) : Result<std::int64_t>{0};
    if (own && *own > 0 && *own <= UINT16_MAX) {
      return {Port{static_cast<std::uint16_t>(*own)}, ", " + options_.source("master-port")};
    }
    if (found_.port) {
      return {found_.port->value, found_.port->from == "default" ? "" : ", " + found_.port->from};
    }
    // With the static rendezvous the port is the workers' too, which know of one only.
    const std::string run_id = options_.text("rdzv-id", "none");
    if (options_.text("rdzv-backend") == "static") return {derived_port(run_id, 0), ""};
    for (int i = 1; i < derived_ports; ++i) part_.further_ports.push_back(derived_port(run_id, i));
    return {derived_port(run_id, 0), ""};
  }

  [[nodiscard]] Error nobody_knows() const {
    std::string place = "this is a node of several";
    if (found_.node && found_.nodes) {
      place = fmt::format("this is node {} of {}", found_.node->value, found_.nodes->value);
    } else if (found_.node) {
      place = fmt::format("this is node {}", found_.node->value);
    }
    return fail(errc::bad_value,
                fmt::format("{} says that {}, but not where node 0 is: --rdzv-endpoint=HOST:PORT, or MASTER_ADDR=HOST "
                            "in the environment (mpirun -x MASTER_ADDR=HOST)",
                            found_.scheduler, place));
  }

  /// Processes of MPI need not be in the order of the batch job's hosts.
  [[nodiscard]] bool is_not_here(const Told<std::string>& first) const {
    return first.from == part_.hosts_from && !found_.own_name.empty() && found_.own_name != first.value;
  }

  [[nodiscard]] Error somewhere_else(const Told<std::string>& first) const {
    return fail(
        errc::bad_value,
        fmt::format("{} says that this is node 0, on {}, and the first of {} is {}: --rdzv-endpoint=HOST:PORT, or "
                    "MASTER_ADDR=HOST in the environment (mpirun -x MASTER_ADDR=HOST), tells where nodes meet",
                    found_.scheduler, found_.own_name, first.from, first.value));
  }

  static std::string bracketed(const std::string& host) {
    return host.find(':') == std::string::npos ? host : "[" + host + "]";
  }

  void expect_hosts() {
    if (!found_.hosts || found_.own_name.empty()) return;
    part_.own_name = found_.own_name;
    derive_hosts();
  }

  /// All nodes compare the list, and so much of it goes over the wire.
  void derive_hosts() {
    std::string list = fmt::format("{}", fmt::join(part_.hosts, ","));
    if (list.size() <= text_bytes_max) options_.derive("expect-hosts", std::move(list), part_.hosts_from);
  }

  const Allocation& found_;
  OptionValues& options_;
  SchedulerPart part_;
};

}  // namespace

Port derived_port(std::string_view run_id, int index) {
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const char letter : run_id) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
  constexpr std::uint64_t step = 4099, ports = 12'288, first = 20'000;
  return Port{static_cast<std::uint16_t>(first + (hash + static_cast<std::uint64_t>(index) * step) % ports)};
}

Result<SchedulerPart> derive_options(const Allocation& allocation, const std::function<int()>& visible_gpus,
                                     OptionValues& options) {
  return Derivation{allocation, options}.run(visible_gpus);
}

void derive_workers_of_gpus(OptionValues& options) {
  const auto chosen = split(options.text("gpus"), ',').size();
  options.derive("nproc-per-node", fmt::format("{}", chosen), options.source("gpus"));
}

void derive_grace(const VariableLookup& variable, OptionValues& options) {
  if (variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")) return;
  for (const char* const sign : {"SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"}) {
    if (const auto value = variable(sign); value && !value->empty()) {
      options.derive("shutdown-timeout", short_grace, sign);
      return;
    }
  }
}

}  // namespace torchup
