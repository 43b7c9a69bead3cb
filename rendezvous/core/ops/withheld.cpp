#include "rendezvous/core/ops/withheld.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace torchup {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::string_view, 14> names{"command",          "message",      "traceback",  "last_lines",
                                                 "native_backtrace", "kernel_lines", "last_words", "python_stack",
                                                 "findings",         "ended_for",    "said",       "scope",
                                                 "collective",       "operation"};
constexpr std::string_view summary_name = "summary";
constexpr int depth_max = 32;

/// Whether it can hold any of them: an escape may spell a letter of a name.
bool may_hold(std::string_view json) {
  const auto has_name = [&](std::string_view name) {
    for (std::size_t at = json.find(name); at != std::string_view::npos; at = json.find(name, at + 1)) {
      if (at > 0 && json[at - 1] == '"' && json.substr(at + name.size()).starts_with('"')) return true;
    }
    return false;
  };
  return json.find("\\u") != std::string_view::npos || has_name(summary_name) ||
         std::any_of(names.begin(), names.end(), has_name);
}

/// Cuts every `summary` in it; true: one was longer.
bool cut_summaries(ordered_json& json) {
  bool cut = false;
  for (auto& [name, value] : json.items()) {
    if (value.is_structured()) {
      cut = cut_summaries(value) || cut;
    } else if (name == summary_name && value.is_string() && json.is_object()) {
      const std::string whole = value.get<std::string>();
      const std::string_view part = summary_without_message(whole);
      cut = cut || part.size() < whole.size();
      value = std::string{part};
    }
  }
  return cut;
}

}  // namespace

bool is_withheld(std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

std::string_view summary_without_message(std::string_view summary) {
  constexpr std::string_view colon = ": ";
  const std::size_t host_end = summary.find(colon);
  if (host_end == std::string_view::npos) return summary;
  return summary.substr(0, summary.find(colon, host_end + colon.size()));
}

std::string without_output(std::string event) {
  constexpr const char* output = "last_lines";
  if (event.find(output) == std::string::npos && event.find("\\u") == std::string::npos) return event;
  ordered_json object = ordered_json::parse(event, nullptr, false);
  if (!object.is_object() || object.erase(output) == 0) return event;
  object["withheld"] = true;
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string withheld(std::string_view json) {
  if (!may_hold(json)) return std::string{json};
  bool left_out = false;
  const auto keep = [&](int depth, ordered_json::parse_event_t event, ordered_json& parsed) {
    const bool named = event == ordered_json::parse_event_t::key && is_withheld(parsed.get_ref<const std::string&>());
    left_out = left_out || named || depth > depth_max;
    return !named && depth <= depth_max;
  };
  ordered_json object = ordered_json::parse(json, keep, false);
  if (!object.is_object()) object = ordered_json::object(), left_out = true;
  if (cut_summaries(object)) left_out = true;
  if (!left_out) return std::string{json};
  object["withheld"] = true;
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace torchup
