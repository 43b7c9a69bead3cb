#include "launcher/core/text/json.hpp"

#include <fmt/format.h>

namespace torchup {
namespace {

/// How deep brackets stand in each other, as far as `most` + 1. The text need not be JSON.
int nesting(std::string_view text, int most) {
  int depth = 0;
  int deepest = 0;
  bool quoted = false;
  for (std::size_t at = 0; at < text.size() && deepest <= most; ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '\\') ++at;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Result<json> parse_json(std::string_view bytes) {
  if (nesting(bytes, json_depth_max) > json_depth_max)
    return fail(errc::limit_exceeded, fmt::format("it is nested deeper than {} levels", json_depth_max));
  json value = json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return fail(errc::bad_value, "it is not JSON");
  return value;
}

}  // namespace torchup
