#pragma once

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "worker_runtime/format/torch_dtypes.hpp"

namespace torchup {

/// A dtype of the files that we read, as LibTorch has it.
struct ScalarTypeName {
  std::string_view name;  ///< as in torch_dtypes
  torch::ScalarType type;
};
inline constexpr std::array scalar_types{
    ScalarTypeName{"float64", torch::kFloat64},
    ScalarTypeName{"float32", torch::kFloat32},
    ScalarTypeName{"float16", torch::kFloat16},
    ScalarTypeName{"bfloat16", torch::kBFloat16},
    ScalarTypeName{"float8_e4m3fn", torch::kFloat8_e4m3fn},
    ScalarTypeName{"float8_e5m2", torch::kFloat8_e5m2},
    ScalarTypeName{"complex64", torch::kComplexFloat},
    ScalarTypeName{"int64", torch::kInt64},
    ScalarTypeName{"int32", torch::kInt32},
    ScalarTypeName{"int16", torch::kInt16},
    ScalarTypeName{"int8", torch::kInt8},
    ScalarTypeName{"uint64", torch::kUInt64},
    ScalarTypeName{"uint32", torch::kUInt32},
    ScalarTypeName{"uint16", torch::kUInt16},
    ScalarTypeName{"uint8", torch::kUInt8},
    ScalarTypeName{"bool", torch::kBool},
};
static_assert(scalar_types.size() == torch_dtypes.size() &&
                  std::ranges::all_of(torch_dtypes,
                                      [](const TorchDtype& dtype) {
                                        return std::ranges::count(scalar_types, dtype.name, &ScalarTypeName::name) == 1;
                                      }),
              "what the readers of files accept, and what can be made of it, differ");

constexpr torch::ScalarType scalar_type_of(const TorchDtype& dtype) {
  return std::ranges::find(scalar_types, dtype.name, &ScalarTypeName::name)->type;
}

}  // namespace torchup
