#include "launcher/core/ops/relayed.hpp"

#include <fmt/format.h>

#include "launcher/core/text/json.hpp"

namespace torchup {
namespace {

std::string one_line(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

std::optional<std::uint64_t> unsigned_in(const json& object, const char* name) {
  const json* const number = torchup::member(object, name);
  return number && number->is_number_unsigned() ? std::optional{number->get<std::uint64_t>()} : std::nullopt;
}

}  // namespace

std::optional<std::string> with_launcher(std::string_view jobs, std::string_view run_id, std::int64_t pid,
                                         std::string_view name) {
  ordered_json answer = ordered_json::parse(jobs, nullptr, false);
  if (!answer.is_object() || !answer.contains("jobs") || !answer["jobs"].is_array()) return std::nullopt;
  for (ordered_json& row : answer["jobs"]) {
    if (!row.is_object() || row.value("run_id", ordered_json{}) != run_id) continue;
    row["pid"] = pid;
    if (ordered_json& known = row["name"]; known.is_null() && !name.empty()) known = name;
  }
  return answer.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::optional<std::uint64_t> seq_of(std::string_view snapshot) {
  const auto read = parse_json(snapshot);
  return read ? unsigned_in(*read, "seq") : std::nullopt;
}

std::string stream_frame(std::string_view event, std::string_view data) {
  return fmt::format("event: {}\ndata: {}\n\n", event, data);
}

std::optional<RelayedEvents> relayed_events(std::string_view answer, std::uint64_t since) {
  const auto read = parse_json(answer);
  if (!read) return std::nullopt;
  const json* const events = torchup::member(*read, "events");
  const auto next = unsigned_in(*read, "next");
  if (!events || !events->is_array() || !next) return std::nullopt;
  RelayedEvents relayed{.next = *next};
  const std::uint64_t lost = unsigned_in(*read, "lost").value_or(0);
  // A coordinator that has begun anew has lost none of those that it counts, and counts others.
  const bool follows = since == 0 || *next == since + events->size();
  if (lost > 0 || !follows) relayed.frames = stream_frame("gap", fmt::format("{{\"lost\":{}}}", lost));
  for (const json& event : *events) {
    const auto seq = unsigned_in(event, "seq");
    if (seq) relayed.frames += fmt::format("event: event\nid: {}\ndata: {}\n\n", *seq, one_line(event));
  }
  return relayed;
}

}  // namespace torchup
