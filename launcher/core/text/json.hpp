#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "rendezvous/base/result.hpp"

/// For .cpp files only: a header that needs no more than the names includes <nlohmann/json_fwd.hpp>.
namespace torchup {

using nlohmann::json;          // what is read
using nlohmann::ordered_json;  // what is written: members stay in the order in which they were put

/// More brackets within each other are not read: a value is written and compared by recursion, and a worker must not
/// choose how deep our stack grows.
inline constexpr int json_depth_max = 64;

/// The value that `bytes` are, from whomever. Errors: errc::bad_value, "it is not JSON"; errc::limit_exceeded beyond
/// json_depth_max. How long `bytes` may be is the caller's to say.
[[nodiscard]] Result<json> parse_json(std::string_view bytes);

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
