#include "worker_runtime/group/recorder_tail.hpp"

#include <charconv>
#include <utility>

namespace torchup {
namespace {

/// Begins each call, and is nowhere else: within a string JSON escapes quotes.
constexpr std::string_view call_begins = "{\"collective_seq_id\":";

/// The JSON value with which the text begins; empty where its end is missing.
std::string_view value_at(std::string_view text) {
  std::size_t depth = 0;
  bool quoted = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '\\') ++at;
      if (c != '"') continue;
      quoted = false;
      if (depth == 0) return text.substr(0, at + 1);
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      if (depth == 0) return text.substr(0, at);
      if (--depth == 0) return text.substr(0, at + 1);
    } else if (c == ',' && depth == 0) {
      return text.substr(0, at);
    }
  }
  return {};
}

std::int64_t number_in(std::string_view value, std::int64_t otherwise) {
  std::int64_t number = 0;
  const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), number);
  return code == std::errc{} && end == value.data() + value.size() ? number : otherwise;
}

/// `"0"` of `["0","default_pg"]`, without its quotes.
std::string_view name_in(std::string_view pair) {
  if (!pair.starts_with("[\"")) return {};
  std::string_view name = value_at(pair.substr(1));
  if (name.empty()) return {};
  name.remove_prefix(1);
  name.remove_suffix(1);
  return name;
}

RecordedCall call_in(std::string_view object) {
  RecordedCall call;
  std::int64_t number = -1;
  std::int64_t peer_number = -1;
  while (object.size() > 1) {
    object.remove_prefix(1);  // the brace, or a comma
    const std::string_view name = value_at(object);
    if (object.size() <= name.size() || object[name.size()] != ':') break;
    object.remove_prefix(name.size() + 1);
    const std::string_view value = value_at(object);
    if (value.empty()) break;
    object.remove_prefix(value.size());
    if (name == R"("collective_seq_id")") number = number_in(value, -1);
    if (name == R"("p2p_seq_id")") peer_number = number_in(value, -1);
    if (name == R"("is_p2p")") call.point_to_point = value == "true";
    if (name == R"("process_group")") call.group = name_in(value);
    if (name == R"("profiling_name")") call.operation = value;
    if (name == R"("input_sizes")") call.sizes = value;
    if (name == R"("input_dtypes")") call.dtypes = value;
    if (name == R"("time_created_ns")") call.created_ns = number_in(value, 0);
    if (name == R"("retired")") call.retired = value == "true";
    if (name == R"("duration_ms")") call.duration_ms = value;
  }
  call.number = call.point_to_point ? peer_number : number;
  return call;
}

}  // namespace

std::vector<RecordedCall> recorder_tail(std::string_view text, std::size_t calls_max) {
  std::vector<RecordedCall> calls;
  while (calls.size() < calls_max) {
    const std::size_t begin = text.rfind(call_begins);
    if (begin == std::string_view::npos) break;
    const std::string_view object = value_at(text.substr(begin));
    text = text.substr(0, begin);
    if (!object.empty()) calls.push_back(call_in(object));
  }
  return calls;
}

}  // namespace torchup
