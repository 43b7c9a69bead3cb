#include "launcher/core/options/exit_codes.hpp"

#include <array>

namespace torchup {
namespace {

constexpr std::array exit_code_table = {
    ExitCode{"0", "all workers exited 0"},
    ExitCode{"1", "workers failed and no restart was left"},
    ExitCode{"2", "command line refused: unknown option, bad value, missing program"},
    ExitCode{"65",
             "the machine lacks what was asked for by name: GPUs, a kernel that is new enough; too few nodes are fit"},
    ExitCode{"66", "too few nodes within the join timeout, or left of --hosts"},
    ExitCode{"67", "endpoint, or a host of --hosts, not reachable, or the port taken by somebody else"},
    ExitCode{"68", "nodes do not fit together: version, run configuration, token"},
    ExitCode{"70", "internal fault"},
    ExitCode{"75", "the workers saved their state and ask to be started again (preemption)"},
    ExitCode{"128+n", "ended by signal n"},
};

}  // namespace

std::span<const ExitCode> exit_codes() { return exit_code_table; }

}  // namespace torchup
