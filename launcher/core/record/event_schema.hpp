#pragma once

#include <string_view>

namespace torchup {

/// The JSON Schema (draft 2020-12) of every line of --events: launcher/core/event_schema.json.
extern const std::string_view event_schema_text;

}  // namespace torchup
