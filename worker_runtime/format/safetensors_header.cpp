#include "worker_runtime/format/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <torchup/error.hpp>
#include <type_traits>
#include <utility>

#include "worker_runtime/format/torch_dtypes.hpp"

namespace torchup {

namespace {

using nlohmann::json;

/// The library converts a number of any kind to any other: a side of 1.5 would be 1, and one of 1e30 undefined.
template <class Integer>
Integer integer(const json& value, const std::string& tensor) {
  const bool fits = std::is_signed_v<Integer> ? value.is_number_integer() : value.is_number_unsigned();
  if (!fits) throw Error{fmt::format("a side or an offset of tensor {} is no whole number that it can be", tensor)};
  return value.get<Integer>();
}

SafetensorsEntry entry_of(const std::string& name, const json& value) {
  SafetensorsEntry entry{.name = name, .dtype = value.at("dtype").get<std::string>()};
  if (safetensors_element_bytes(entry.dtype) == 0)
    throw Error{fmt::format("tensor {} has dtype {}", name, entry.dtype)};
  const json& shape = value.at("shape");
  if (!shape.is_array()) throw Error{fmt::format("the shape of tensor {} is no list", name)};
  if (shape.size() > safetensors_dimensions_max)
    throw Error{
        fmt::format("tensor {} has {} dimensions, more than {}", name, shape.size(), safetensors_dimensions_max)};
  for (const json& side : shape) entry.shape.push_back(integer<std::int64_t>(side, name));
  entry.begin = integer<std::uint64_t>(value.at("data_offsets").at(0), name);
  entry.end = integer<std::uint64_t>(value.at("data_offsets").at(1), name);
  return entry;
}

/// Of the tree nothing is kept but what is read just now: all of it would take twenty times the bytes of its text.
class HeaderReader {
 public:
  explicit HeaderReader(std::size_t tensors_max) : tensors_max_{tensors_max} {}

  SafetensorsHeader read(std::string_view text) {
    const auto keep = [this](int depth, Event event, json& value) { return take(depth, event, value); };
    try {
      if (json::parse(text, keep, /*allow_exceptions=*/false).is_discarded()) throw Error{no_object};
    } catch (const json::exception& error) {
      throw Error{fmt::format("its header does not describe tensors: {}", error.what())};
    }
    std::vector<std::string_view> names;
    names.reserve(header_.tensors.size());
    for (const SafetensorsEntry& entry : header_.tensors) names.push_back(entry.name);
    std::ranges::sort(names);
    if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
      throw Error{fmt::format("two tensors are named {}", *twice)};
    return std::move(header_);
  }

 private:
  using Event = json::parse_event_t;
  static constexpr const char* no_object = "its header is no JSON object";
  static constexpr int nesting_max = 3;  // the header, a tensor, its shape

  /// Whether the tree is to keep `value`.
  bool take(int depth, Event event, json& value) {
    const bool begins = event == Event::object_start || event == Event::array_start;
    if (depth == 0) {
      if (event != Event::object_start && event != Event::object_end) throw Error{no_object};
      return true;
    }
    if (begins && depth >= nesting_max) throw Error{"its header is nested too deep"};
    if (depth == 1 && event == Event::key) {
      name_ = value.get<std::string>();
      values_ = 0;
      return true;
    }
    const bool ends = event == Event::object_end || event == Event::array_end;
    if (!ends && ++values_ > safetensors_values_max)
      throw Error{fmt::format("more than {} values are named {}", safetensors_values_max, name_)};
    if (depth > 1 || begins) return true;
    if (name_ == "__metadata__") {
      header_.metadata = value.get<std::map<std::string, std::string>>();
    } else {
      if (header_.tensors.size() == tensors_max_) throw Error{fmt::format("it has more than {} tensors", tensors_max_)};
      header_.tensors.push_back(entry_of(name_, value));
    }
    return false;
  }

  std::size_t tensors_max_;
  SafetensorsHeader header_;
  std::string name_;        // in the header, of what is read just now
  std::size_t values_ = 0;  // and what it has had so far
};

/// Bytes of the tensor. Nothing where its strides could not be counted, as those of [0, 2^62, 2^62].
std::optional<std::uint64_t> bytes_of(const SafetensorsEntry& entry) {
  auto with_strides = static_cast<std::int64_t>(safetensors_element_bytes(entry.dtype));
  bool empty = false;
  for (const std::int64_t side : entry.shape) {
    if (side < 0) return std::nullopt;
    empty = empty || side == 0;
    if (__builtin_mul_overflow(with_strides, std::max<std::int64_t>(side, 1), &with_strides)) return std::nullopt;
  }
  return empty ? 0 : static_cast<std::uint64_t>(with_strides);
}

}  // namespace

std::uint64_t safetensors_element_bytes(std::string_view dtype) {
  const auto found = std::ranges::find(torch_dtypes, dtype, &TorchDtype::safetensors);
  return found == torch_dtypes.end() ? 0 : found->bytes;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes, std::size_t tensors_max) {
  SafetensorsHeader header = HeaderReader{tensors_max}.read(text);
  std::ranges::sort(header.tensors, {}, [](const auto& entry) { return std::pair{entry.begin, entry.end}; });
  std::uint64_t offset = 0;
  for (const SafetensorsEntry& entry : header.tensors) {
    const auto bytes = bytes_of(entry);
    if (!bytes || *bytes > data_bytes)
      throw Error{fmt::format("the shape of tensor {} does not fit into the file", entry.name)};
    if (entry.begin != offset || entry.end < entry.begin || entry.end - entry.begin != *bytes || entry.end > data_bytes)
      throw Error{fmt::format("the offsets of tensor {} do not fit its shape, its neighbours or the file", entry.name)};
    offset = entry.end;
  }
  if (offset != data_bytes) throw Error{fmt::format("{} bytes belong to no tensor", data_bytes - offset)};
  return header;
}

}  // namespace torchup
