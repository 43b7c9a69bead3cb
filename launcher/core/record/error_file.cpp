#include "launcher/core/record/error_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "launcher/core/text/json.hpp"
#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

/// What Python's int() makes of a JSON value: whole numbers, fractions cut, numeric text with blanks around it.
std::optional<std::int64_t> to_integer(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (!(std::abs(number) < 9e18)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (!value.is_string()) return std::nullopt;
  const std::string_view text = stripped(value.get_ref<const std::string&>());
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// A time since 1970 in microseconds. It should be in seconds; who wrote milliseconds, microseconds or nanoseconds is
/// told by the size of the number: seconds below `seconds_below` reach to the year 5138.
std::optional<std::int64_t> to_microseconds(const json& value) {
  constexpr std::int64_t seconds_below = 100'000'000'000;
  const auto number = to_integer(value);
  if (!number) return std::nullopt;
  const auto below = [&](std::int64_t limit) { return *number<limit&& * number> - limit; };
  if (below(seconds_below)) return *number * 1'000'000;
  if (below(seconds_below * 1'000)) return *number * 1'000;
  if (below(seconds_below * 1'000'000)) return *number;
  return *number / 1'000;
}

/// Text as it is, anything else as JSON.
std::string as_text(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// A traceback's lines stand two columns further in.
std::string indented(const std::string& text) {
  std::string result;
  for (const char c : text) {
    result += c;
    if (c == '\n') result += "  ";
  }
  return result;
}

}  // namespace

Result<WorkerError> parse_error_file(std::string_view bytes) {
  if (bytes.size() > error_file_bytes_max)
    return fail(errc::limit_exceeded, fmt::format("it is longer than {} bytes", error_file_bytes_max));
  const auto file = parse_json(bytes);
  if (!file) return file.error();
  const json* message = member(*file, "message");
  if (message == nullptr) return fail(errc::bad_value, "it has no `message`");

  WorkerError error;
  if (message->is_string()) {
    error.message = error.traceback = message->get<std::string>();
    if (const json* time = member(*file, "timestamp")) {
      const auto time_us = to_microseconds(*time);
      if (!time_us) return fail(errc::bad_value, "its `timestamp` is no number");
      error.time_us = *time_us;
    }
    return error;
  }
  const json* extra = member(*message, "extraInfo");
  const json* time = extra != nullptr ? member(*extra, "timestamp") : nullptr;
  const auto time_us = time != nullptr ? to_microseconds(*time) : std::nullopt;
  if (!time_us) return fail(errc::bad_value, "its `message` has no usable `extraInfo.timestamp`");
  const json* text = member(*message, "message");
  const json* callstack = member(*extra, "py_callstack");
  error.structured = true;
  error.time_us = *time_us;
  error.message = text != nullptr ? as_text(*text) : "";
  error.traceback = indented(callstack != nullptr ? as_text(*callstack) : text != nullptr ? error.message : "<N/A>");
  return error;
}

std::vector<std::string> reported_lines(std::string_view traceback) {
  std::vector<std::string> lines = lines_of(traceback);
  for (std::size_t at = 1; at < lines.size(); ++at)
    if (lines[at].starts_with("  ")) lines[at].erase(0, 2);
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

std::string completed(std::string traceback, const std::vector<std::string>& output) {
  const auto said = reported_lines(traceback);
  const auto last = std::find_if(output.rbegin(), output.rend(), [](const auto& line) { return !line.empty(); });
  if (said.empty() || last == output.rend() || !last->starts_with(said.back())) return traceback;
  const auto end = traceback.find_last_not_of('\n') + 1;
  return traceback.insert(end, last->substr(said.back().size()));
}

std::string with_error_code(std::string_view bytes, int exit_code) {
  auto file = parse_json(bytes);
  const json* message = file ? member(*file, "message") : nullptr;
  if (message == nullptr || !message->is_object()) return std::string{bytes};
  (*file)["message"]["errorCode"] = exit_code;
  return file->dump(-1, ' ', true, json::error_handler_t::replace);
}

std::string make_error_file(std::string_view message, std::string_view traceback, std::int64_t time_s) {
  const json file{
      {"message",
       {{"message", message}, {"extraInfo", {{"py_callstack", traceback}, {"timestamp", std::to_string(time_s)}}}}}};
  return file.dump(-1, ' ', true, json::error_handler_t::replace);
}

}  // namespace torchup
