#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "worker_runtime/backend_factory.hpp"

namespace torchup {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendPlan& plan) {
  // create_default, unlike create, fills in a network device and obeys GLOO_SOCKET_IFNAME.
  auto options = c10d::ProcessGroupGloo::Options::create_default(plan.timeout);
  options->group_name = plan.group_name;
  options->global_ranks_in_group.assign(plan.global_ranks.begin(), plan.global_ranks.end());
  return c10::make_intrusive<c10d::ProcessGroupGloo>(plan.store, plan.rank, plan.size, options);
}

}  // namespace torchup
