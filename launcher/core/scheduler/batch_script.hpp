#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/options/option_values.hpp"
#include "rendezvous/base/result.hpp"

namespace torchup {

/// What starts this command line as a job of `scheduler`, for --print-batch-script: for `slurm` a script for sbatch,
/// for `kubernetes` a Service and an Indexed Job. Options of the command line go into it, those of variables and files
/// do not: there they may be others. What the command line does not say stands there as a comment.
///
/// Errors: errc::bad_value for another scheduler, for --nnodes that are none, for options without a meaning there, and
/// for a word that is not UTF-8 where the text is to be YAML.
[[nodiscard]] Result<std::string> batch_script(std::string_view scheduler, const OptionValues& options,
                                               const std::vector<std::string>& program);

}  // namespace torchup
