#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "launcher/core/options/launch_config.hpp"
#include "launcher/core/options/option_values.hpp"
#include "launcher/core/scheduler/allocation.hpp"

namespace torchup {

/// The value of --rank-order that nobody but a scheduler gives, on all nodes: ranks follow its index of nodes.
inline constexpr std::string_view by_index = "index";

/// Ports of the first host that a job may meet at, one after the other.
inline constexpr int derived_ports = 4;

/// The `index`th of them, below those that the kernel gives to connections: two steps, jobs or restarts of one differ
/// in their run ids, and so as a rule in these.
[[nodiscard]] Port derived_port(std::string_view run_id, int index);

/// Puts what the scheduler says below what the user says, value by value. With --standalone, and with at most one node,
/// nothing is derived that has to do with a meeting or with tasks. `visible_gpus` is asked only where it counts.
///
/// Errors: errc::bad_value: more nodes wanted than there are; a meeting point that nobody knows, or that is not where
/// node 0 is.
[[nodiscard]] Result<SchedulerPart> derive_options(const Allocation& allocation,
                                                   const std::function<int()>& visible_gpus, OptionValues& options);

/// As many workers as --gpus names devices.
void derive_workers_of_gpus(OptionValues& options);

/// The grace in Slurm and in pods, which themselves have patience for 30 s. Whoever has set another one keeps it.
void derive_grace(const VariableLookup& variable, OptionValues& options);

}  // namespace torchup
