#pragma once

#include <string>

#include "launcher/core/options/launch_config.hpp"
#include "launcher/core/options/option_values.hpp"

namespace torchup {

/// Reads the job's secret into the plan, of --token-file or else `from_variable` (empty: there is none), or
/// else the service manager's (read_credential_token), and the one of
/// --read-token-file. Errors: those of read_token_file and checked_token, and
/// that there is no OpenSSL to prove it with.
[[nodiscard]] Result<> read_tokens(const OptionValues& options, std::string from_variable, LaunchConfig& plan);

}  // namespace torchup
