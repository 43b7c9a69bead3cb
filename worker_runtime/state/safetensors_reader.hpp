#pragma once

#include <torchup/safetensors.hpp>

#include "worker_runtime/state/file_reader.hpp"

namespace torchup {

/// As load_safetensors, of a file at its beginning; every byte of it is read.
SafetensorsFile read_safetensors(FileReader& file);

}  // namespace torchup
