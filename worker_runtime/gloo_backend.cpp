#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "worker_runtime/backend_factory.hpp"
#include "worker_runtime/gloo_address.hpp"

namespace torchup {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendPlan& plan) {
  using Gloo = c10d::ProcessGroupGloo;
  const std::string address = gloo_address(plan.master_addr, plan.several_nodes);
  // create_default, unlike create, fills in a network device and obeys GLOO_SOCKET_IFNAME.
  auto options = address.empty() ? Gloo::Options::create_default(plan.timeout) : Gloo::Options::create(plan.timeout);
  if (!address.empty()) options->devices.push_back(Gloo::createDeviceForHostname(address));
  options->group_name = plan.group_name;
  options->global_ranks_in_group.assign(plan.global_ranks.begin(), plan.global_ranks.end());
  return c10::make_intrusive<Gloo>(plan.store, plan.rank, plan.size, options);
}

}  // namespace torchup
