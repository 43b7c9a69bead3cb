#include "worker_runtime/format/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <torchup/error.hpp>
#include <utility>

namespace torchup {

namespace {

using nlohmann::json;

constexpr std::array<std::pair<std::string_view, std::uint64_t>, 16> element_bytes{{{"F64", 8},
                                                                                    {"F32", 4},
                                                                                    {"F16", 2},
                                                                                    {"BF16", 2},
                                                                                    {"F8_E4M3", 1},
                                                                                    {"F8_E5M2", 1},
                                                                                    {"C64", 8},
                                                                                    {"I64", 8},
                                                                                    {"I32", 4},
                                                                                    {"I16", 2},
                                                                                    {"I8", 1},
                                                                                    {"U64", 8},
                                                                                    {"U32", 4},
                                                                                    {"U16", 2},
                                                                                    {"U8", 1},
                                                                                    {"BOOL", 1}}};
constexpr int nesting_max = 3;  // the header, a tensor, its shape

/// Throws as soon as something is nested deeper than the format: a deep nest costs many times its bytes.
json parse(std::string_view text) {
  const auto shallow = [](int depth, json::parse_event_t event, json&) {
    const bool opens = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (opens && depth >= nesting_max) throw Error{"its header is nested too deep"};
    return true;
  };
  return json::parse(text, shallow, /*allow_exceptions=*/false);
}

SafetensorsEntry entry_of(const std::string& name, const json& value) {
  SafetensorsEntry entry{.name = name, .dtype = value.at("dtype").get<std::string>()};
  if (safetensors_element_bytes(entry.dtype) == 0)
    throw Error{fmt::format("tensor {} has dtype {}", name, entry.dtype)};
  if (value.at("shape").size() > safetensors_dimensions_max)
    throw Error{fmt::format("tensor {} has {} dimensions, more than {}", name, value.at("shape").size(),
                            safetensors_dimensions_max)};
  entry.shape = value.at("shape").get<std::vector<std::int64_t>>();
  entry.begin = value.at("data_offsets").at(0).get<std::uint64_t>();
  entry.end = value.at("data_offsets").at(1).get<std::uint64_t>();
  return entry;
}

}  // namespace

std::uint64_t safetensors_element_bytes(std::string_view dtype) {
  const auto found = std::ranges::find(element_bytes, dtype, &decltype(element_bytes)::value_type::first);
  return found == element_bytes.end() ? 0 : found->second;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes) {
  SafetensorsHeader header;
  try {
    const json document = parse(text);
    if (!document.is_object()) throw Error{"its header is no JSON object"};
    for (const auto& [name, value] : document.items()) {
      if (name == "__metadata__")
        header.metadata = value.get<std::map<std::string, std::string>>();
      else
        header.tensors.push_back(entry_of(name, value));
    }
  } catch (const json::exception& error) {
    throw Error{fmt::format("its header does not describe tensors: {}", error.what())};
  }

  std::ranges::sort(header.tensors, {}, [](const auto& entry) { return std::pair{entry.begin, entry.end}; });
  std::uint64_t offset = 0;
  for (const SafetensorsEntry& entry : header.tensors) {
    std::uint64_t bytes = safetensors_element_bytes(entry.dtype);
    for (const std::int64_t side : entry.shape) {
      const auto count = static_cast<std::uint64_t>(side);
      if (side < 0 || (side > 0 && bytes > data_bytes / count))
        throw Error{fmt::format("the shape of tensor {} does not fit into the file", entry.name)};
      bytes *= count;
    }
    if (entry.begin != offset || entry.end < entry.begin || entry.end - entry.begin != bytes || entry.end > data_bytes)
      throw Error{fmt::format("the offsets of tensor {} do not fit its shape, its neighbours or the file", entry.name)};
    offset = entry.end;
  }
  if (offset != data_bytes) throw Error{fmt::format("{} bytes belong to no tensor", data_bytes - offset)};
  return header;
}

}  // namespace torchup
