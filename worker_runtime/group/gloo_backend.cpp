#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <string>
#include <type_traits>

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

/// Whether this LibTorch can give gloo another time-out when it is connected.
template <class Gloo>
constexpr bool changes_timeout = requires {
  requires std::is_same_v<decltype(&Gloo::setTimeout), void (Gloo::*)(std::chrono::milliseconds)>;
};

template <class Gloo>
void change_timeout(Gloo& backend, std::chrono::milliseconds timeout) {
  if constexpr (changes_timeout<Gloo>) backend.setTimeout(timeout);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendPlan& plan) {
  using Gloo = c10d::ProcessGroupGloo;
  const std::string address = gloo_address(master_beyond_proxy(plan.master_addr), plan.several_nodes);
  auto timeout = plan.timeout;
  if constexpr (changes_timeout<Gloo>) timeout = std::min(timeout, plan.connect_limit.value_or(timeout));
  auto options = address.empty() ? default_options<Gloo>(timeout) : Gloo::Options::create(timeout);
  if (!address.empty()) options->devices.push_back(Gloo::createDeviceForHostname(address));
  options->group_name = plan.group_name;
  options->global_ranks_in_group.assign(plan.global_ranks.begin(), plan.global_ranks.end());
  auto backend = c10::make_intrusive<Gloo>(plan.store, plan.rank, plan.size, options);
  change_timeout(*backend, plan.timeout);
  backend->setGroupUid(plan.group_name);  // the recorder's name for it; not every LibTorch takes that from the options
  return backend;
}

std::string gloo_recorder_text() { return c10d::dump_fr_trace_json(true, false); }

}  // namespace torchup
