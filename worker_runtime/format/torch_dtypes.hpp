#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace torchup {

/// What an element of a tensor is, in the words of the files that we read.
struct TorchDtype {
  std::string_view
      storage;            ///< torch.save's class of a typed storage, in module torch; empty: only untyped ones hold it
  std::string_view name;  ///< torch.save's, in module torch
  std::string_view safetensors;  ///< the name in safetensors
  std::uint64_t bytes;           ///< of one element
  bool negates = true;           ///< LibTorch can give it the other sign
};
inline constexpr std::array torch_dtypes{
    TorchDtype{"FloatStorage", "float32", "F32", 4},    TorchDtype{"DoubleStorage", "float64", "F64", 8},
    TorchDtype{"HalfStorage", "float16", "F16", 2},     TorchDtype{"BFloat16Storage", "bfloat16", "BF16", 2},
    TorchDtype{"LongStorage", "int64", "I64", 8},       TorchDtype{"IntStorage", "int32", "I32", 4},
    TorchDtype{"ShortStorage", "int16", "I16", 2},      TorchDtype{"CharStorage", "int8", "I8", 1},
    TorchDtype{"ByteStorage", "uint8", "U8", 1},        TorchDtype{"BoolStorage", "bool", "BOOL", 1, false},
    TorchDtype{"", "uint16", "U16", 2, false},          TorchDtype{"", "uint32", "U32", 4, false},
    TorchDtype{"", "uint64", "U64", 8, false},          TorchDtype{"", "float8_e4m3fn", "F8_E4M3", 1, false},
    TorchDtype{"", "float8_e5m2", "F8_E5M2", 1, false}, TorchDtype{"ComplexFloatStorage", "complex64", "C64", 8},
};

}  // namespace torchup
