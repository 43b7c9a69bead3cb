#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>
#include <sstream>
#include <string>

#include "worker_runtime/group/backend_factory.hpp"
#include "worker_runtime/group/gloo_address.hpp"

namespace torchup {
namespace {

/// Options with the devices of the interfaces in GLOO_SOCKET_IFNAME, else with gloo's own choice: what create_default
/// does, which torch 2.9 has not.
template <class Gloo>
auto default_options(std::chrono::milliseconds timeout) {
  if constexpr (requires { Gloo::Options::create_default(timeout); }) {
    return Gloo::Options::create_default(timeout);
  } else {
    auto options = Gloo::Options::create(timeout);
    const char* named = std::getenv("GLOO_SOCKET_IFNAME");
    std::istringstream interfaces{named ? named : ""};
    for (std::string interface; std::getline(interfaces, interface, ',');)
      options->devices.push_back(Gloo::createDeviceForInterface(interface));
    if (options->devices.empty()) options->devices.push_back(Gloo::createDefaultDevice());
    return options;
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendPlan& plan) {
  using Gloo = c10d::ProcessGroupGloo;
  const std::string address = gloo_address(plan.master_addr, plan.several_nodes);
  auto options = address.empty() ? default_options<Gloo>(plan.timeout) : Gloo::Options::create(plan.timeout);
  if (!address.empty()) options->devices.push_back(Gloo::createDeviceForHostname(address));
  options->group_name = plan.group_name;
  options->global_ranks_in_group.assign(plan.global_ranks.begin(), plan.global_ranks.end());
  return c10::make_intrusive<Gloo>(plan.store, plan.rank, plan.size, options);
}

}  // namespace torchup
