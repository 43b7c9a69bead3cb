#include <fmt/format.h>

#include "launcher/core/plan/plan_steps.hpp"
#include "launcher/core/text/python_numbers.hpp"

namespace torchup {
namespace {

constexpr std::string_view no_part = "of the environment has no part in this job";

/// Other launchers and many scripts take them from there; torchrun and we take them from options and PET_… alone.
void tell_where_nodes_meet(const PlanSource& source, LaunchConfig& plan) {
  const auto& [options, words, legacy, machine] = source;
  const bool by_address = plan.rendezvous.backend == Backend::static_ && options.text("rdzv-endpoint").empty();
  if (plan.one_node() || !by_address) return;
  const auto address = machine.variable("MASTER_ADDR");
  const std::string here = to_string(*plan.rendezvous.endpoint);
  if (address && !address->empty() && !options.has("master-addr") && *address != plan.rendezvous.endpoint->host) {
    warn(plan, fmt::format("MASTER_ADDR={} {}, whose nodes meet at {}: see --master-addr, PET_MASTER_ADDR", *address,
                           no_part, here));
  }
  const auto port = machine.variable("MASTER_PORT");
  if (port && !options.has("master-port") && *port != fmt::format("{}", plan.rendezvous.endpoint->port.value())) {
    warn(plan, fmt::format("MASTER_PORT={} {}, whose nodes meet at {}: see --master-port, PET_MASTER_PORT", *port,
                           no_part, here));
  }
  const auto rank = machine.variable("NODE_RANK");
  if (rank && !options.has("node-rank") && *rank != "0") {
    warn(plan,
         fmt::format("NODE_RANK={} {}, where this node's rank is 0: see --node-rank, PET_NODE_RANK", *rank, no_part));
  }
}

/// A worker that starts a launcher of its own has these variables by right.
void tell_of_another_world(const Machine& machine, LaunchConfig& plan) {
  const auto world = machine.variable("WORLD_SIZE");
  if (!world || !plan.one_node() || machine.variable("TORCHELASTIC_RUN_ID")) return;
  if (python_int(*world).value_or(1) <= 1 || *world == fmt::format("{}", plan.local_world_size)) return;
  warn(plan, fmt::format("WORLD_SIZE={} {}, which has one node with {} {}: see --nnodes, --nproc-per-node", *world,
                         no_part, plan.local_world_size, plan.local_world_size == 1 ? "worker" : "workers"));
}

}  // namespace

Result<> plan_outside(const PlanSource& source, LaunchConfig& plan) {
  tell_where_nodes_meet(source, plan);
  tell_of_another_world(source.machine, plan);
  return {};
}

}  // namespace torchup
