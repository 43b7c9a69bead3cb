#pragma once

#include <nlohmann/json.hpp>
#include <optional>

/// For .cpp files only: a header that needs no more than the names includes <nlohmann/json_fwd.hpp>.
namespace torchup {

using nlohmann::json;          // what is read
using nlohmann::ordered_json;  // what is written: members stay in the order in which they were put

/// The member of that name; null when there is none or `object` is no object.
inline const json* member(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

template <class T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

}  // namespace torchup
