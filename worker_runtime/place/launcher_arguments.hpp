#pragma once

#include <optional>
#include <span>
#include <vector>

namespace torchup {

/// A command line, parted into what a launcher put there and the rest.
struct LauncherArguments {
  std::optional<int> local_rank;
  std::vector<char*> rest;  ///< the program's name and its own arguments; a null pointer ends it, as argv
};

/// Takes `--local-rank N`, `--local_rank N`, `--local-rank=N`, `--local_rank=N` off the command line:
/// torch.distributed.launch and old scripts pass them. What follows `--` is the program's own. Throws Error when N is
/// no number.
LauncherArguments take_launcher_arguments(std::span<char* const> command_line);

}  // namespace torchup
