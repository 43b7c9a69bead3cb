#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"

namespace torchup {

/// Whether a variable is of the machine or the login that it stands in, and means nothing on another one: HOME, SSH_*
/// and their like, our own options (PET_*), and the job's secret.
[[nodiscard]] bool stays_here(std::string_view name);

/// What of our environment agents on other hosts get, "NAME=value" each: `wanted` is --export's, a comma list of ALL,
/// NONE, NAME and NAME=VALUE. ALL is everything that does not stay here, what is named goes in any case; one that is
/// named and not set is left out.
///
/// Errors: errc::bad_value, for an item that is no name.
[[nodiscard]] Result<std::vector<std::string>> exported_environment(const std::vector<std::string>& own,
                                                                    std::string_view wanted);

}  // namespace torchup
