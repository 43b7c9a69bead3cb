#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace torchup {

/// What an element of a tensor is, in the words of a torch.save archive.
struct TorchDtype {
  std::string_view storage;  ///< class of a typed storage, in module torch; empty: only untyped ones hold it
  std::string_view name;     ///< in module torch
  std::uint64_t bytes;       ///< of one element
};
inline constexpr std::array torch_dtypes{
    TorchDtype{"FloatStorage", "float32", 4},
    TorchDtype{"DoubleStorage", "float64", 8},
    TorchDtype{"HalfStorage", "float16", 2},
    TorchDtype{"BFloat16Storage", "bfloat16", 2},
    TorchDtype{"LongStorage", "int64", 8},
    TorchDtype{"IntStorage", "int32", 4},
    TorchDtype{"ShortStorage", "int16", 2},
    TorchDtype{"CharStorage", "int8", 1},
    TorchDtype{"ByteStorage", "uint8", 1},
    TorchDtype{"BoolStorage", "bool", 1},
    TorchDtype{"", "uint16", 2},
    TorchDtype{"", "uint32", 4},
    TorchDtype{"", "uint64", 8},
    TorchDtype{"", "float8_e4m3fn", 1},
    TorchDtype{"", "float8_e5m2", 1},
    TorchDtype{"ComplexFloatStorage", "complex64", 8},
};

}  // namespace torchup
