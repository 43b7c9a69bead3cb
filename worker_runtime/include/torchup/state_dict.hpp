#pragma once

#include <torch/types.h>

#include <map>
#include <string>

namespace torchup {

/// What a part of a training program needs to go on later: values by name, every one a tensor, so that any checkpoint
/// format can hold it. Numbers are tensors without dimensions (float64, int64), lists of numbers have one dimension.
/// Names of a nested part are "part.name". Copies share their tensors, as tensors do.
using StateDict = std::map<std::string, torch::Tensor>;

}  // namespace torchup
