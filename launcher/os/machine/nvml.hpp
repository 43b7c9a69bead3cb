#pragma once

#include <string>

#include "launcher/core/machine/machine.hpp"

namespace torchup {

/// Loads NVML and asks it, in this very process: for the child of read_gpus only. A split GPU comes with its instances.
[[nodiscard]] Gpus ask_nvml(const std::string& library);

}  // namespace torchup
