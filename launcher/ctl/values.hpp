#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/core/text/json.hpp"

/// Members of what strangers answered: of another type they are as good as missing.
namespace torchup {

inline std::string text_in(const json& object, const char* name) {
  const json* const value = member(object, name);
  return value && value->is_string() ? value->get<std::string>() : std::string{};
}

inline std::optional<double> number_in(const json& object, const char* name) {
  const json* const value = member(object, name);
  return value && value->is_number() ? std::optional{value->get<double>()} : std::nullopt;
}

inline std::optional<std::int64_t> integer_in(const json& object, const char* name) {
  const json* const value = member(object, name);
  return value && value->is_number_integer() ? std::optional{value->get<std::int64_t>()} : std::nullopt;
}

}  // namespace torchup
