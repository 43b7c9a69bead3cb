#pragma once

#include <optional>
#include <string>

#include "rendezvous/core/link/messages.hpp"

namespace torchup {

/// "--nnodes is 2:2 here and 2:4 in the job" for the first of a node's terms that is not the job's.
[[nodiscard]] std::optional<std::string> terms_difference(const JobTerms& mine, const JobTerms& job);

}  // namespace torchup
