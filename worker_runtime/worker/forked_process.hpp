#pragma once

#include <string>
#include <vector>

#include "rendezvous/base/cpu_set.hpp"

/// How a process that was forked from a template becomes what an executed one is.
namespace torchup {

/// "NAME=value" each, in order; of two with one name the first counts.
using Environment = std::vector<std::string>;

/// What the kernel has given this process, and what it has made of it.
[[nodiscard]] Environment environment_at_start();
[[nodiscard]] Environment environment_by_now();

/// What a worker's environment has become when its main has done to it, executed with `wanted`, what the template's has
/// done to `given`, which is `made` since. Where the template was given another value than the worker is, the worker's
/// stays: what a main sets only where nothing is set, it would not have set there.
[[nodiscard]] Environment as_main_leaves_it(const Environment& given, const Environment& made,
                                            const Environment& wanted);

/// Makes this the environment, for getenv and in `environ`, and has the kernel show `shown` in /proc/PID/environ. That
/// is for people and tools alone: a kernel that cannot do it (no CONFIG_CHECKPOINT_RESTORE) is none the worse.
void set_environment(const Environment& environment, const Environment& shown);

/// Stdio has learnt from the template's descriptors what it has to know from these: whether lines are written at once.
void renew_streams();

/// sched_setaffinity. False: errno says why.
[[nodiscard]] bool bind_to(const CpuSet& cpus);

}  // namespace torchup
