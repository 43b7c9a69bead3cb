#include "rendezvous/core/diagnosis/operation_words.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace torchup {
namespace {

struct Dtype {
  std::string_view recorded, plain;
  int bytes;
};
/// Source: PyTorch, c10/core/ScalarType.h.
constexpr std::array<Dtype, 20> dtypes{{
    {"Float", "float32", 4},
    {"Half", "float16", 2},
    {"BFloat16", "bfloat16", 2},
    {"Double", "float64", 8},
    {"Int", "int32", 4},
    {"Long", "int64", 8},
    {"Short", "int16", 2},
    {"Char", "int8", 1},
    {"Byte", "uint8", 1},
    {"Bool", "bool", 1},
    {"UInt16", "uint16", 2},
    {"UInt32", "uint32", 4},
    {"UInt64", "uint64", 8},
    {"ComplexHalf", "complex32", 4},
    {"ComplexFloat", "complex64", 8},
    {"ComplexDouble", "complex128", 16},
    {"Float8_e5m2", "float8_e5m2", 1},
    {"Float8_e4m3fn", "float8_e4m3fn", 1},
    {"Float8_e5m2fnuz", "float8_e5m2fnuz", 1},
    {"Float8_e4m3fnuz", "float8_e4m3fnuz", 1},
}};

const Dtype* find_dtype(std::string_view name) {
  const auto found =
      std::ranges::find_if(dtypes, [&](const Dtype& dtype) { return dtype.recorded == name || dtype.plain == name; });
  return found == dtypes.end() ? nullptr : found;
}

}  // namespace

std::string_view plain_operation(std::string_view operation) {
  operation = operation.substr(0, operation.find(' '));
  if (const auto colon = operation.find(':'); colon != std::string_view::npos) operation.remove_prefix(colon + 1);
  if (operation.starts_with('_')) operation.remove_prefix(1);
  constexpr std::string_view variant = "_base";
  if (operation.ends_with(variant)) operation.remove_suffix(variant.size());
  return operation;
}

std::string_view backend_of(std::string_view operation) {
  const auto colon = operation.find(':');
  return operation.substr(0, colon == std::string_view::npos ? 0 : colon);
}

bool needs_equal_sizes(std::string_view plain) {
  constexpr std::array<std::string_view, 5> operations{"all_reduce", "reduce", "broadcast", "all_gather",
                                                       "reduce_scatter"};
  return std::ranges::find(operations, plain) != operations.end();
}

std::string_view plain_dtype(std::string_view dtype) {
  const Dtype* known = find_dtype(dtype);
  return known == nullptr ? dtype : known->plain;
}

std::int64_t bytes_of(std::int64_t elements, std::string_view dtype) {
  const Dtype* known = find_dtype(dtype);
  if (known == nullptr || elements < 0 || elements > std::numeric_limits<std::int64_t>::max() / known->bytes) return -1;
  return elements * known->bytes;
}

}  // namespace torchup
