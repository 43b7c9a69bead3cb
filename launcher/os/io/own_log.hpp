#pragma once

#include "launcher/core/options/output_options.hpp"
#include "rendezvous/net/io/log.hpp"

namespace torchup {

/// The launcher's log as the user wants it, to stderr. Words that are none were refused by the option table.
[[nodiscard]] LogOptions own_log(const LogWords& words);

}  // namespace torchup
