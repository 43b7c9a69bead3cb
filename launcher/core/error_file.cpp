#include "launcher/core/error_file.hpp"

#include <charconv>
#include <cmath>
#include <optional>

#include "launcher/core/json.hpp"

namespace torchup {
namespace {

/// What Python's int() makes of a JSON value: whole numbers, fractions cut, numeric text with blanks around it.
std::optional<std::int64_t> to_seconds(const json& value) {
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (!(std::abs(number) < 9e18)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (!value.is_string()) return std::nullopt;
  std::string_view text = value.get_ref<const std::string&>();
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  std::int64_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return seconds;
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
    return fail(errc::limit_exceeded, "it is longer than " + std::to_string(error_file_bytes_max) + " bytes");
  const json file = json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  if (file.is_discarded()) return fail(errc::bad_value, "it is not JSON");
  const json* message = member(file, "message");
  if (message == nullptr) return fail(errc::bad_value, "it has no `message`");

  WorkerError error;
  if (message->is_string()) {
    error.message = error.traceback = message->get<std::string>();
    if (const json* time = member(file, "timestamp")) {
      const auto seconds = to_seconds(*time);
      if (!seconds) return fail(errc::bad_value, "its `timestamp` is no number");
      error.time_s = *seconds;
    }
    return error;
  }
  const json* extra = member(*message, "extraInfo");
  const json* time = extra != nullptr ? member(*extra, "timestamp") : nullptr;
  const auto seconds = time != nullptr ? to_seconds(*time) : std::nullopt;
  if (!seconds) return fail(errc::bad_value, "its `message` has no usable `extraInfo.timestamp`");
  const json* text = member(*message, "message");
  const json* callstack = member(*extra, "py_callstack");
  error.structured = true;
  error.time_s = *seconds;
  error.message = text != nullptr ? as_text(*text) : "";
  error.traceback = indented(callstack != nullptr ? as_text(*callstack) : text != nullptr ? error.message : "<N/A>");
  return error;
}

std::string with_error_code(std::string_view bytes, int exit_code) {
  json file = json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  const json* message = member(file, "message");
  if (message == nullptr || !message->is_object()) return std::string{bytes};
  file["message"]["errorCode"] = exit_code;
  return file.dump(-1, ' ', true, json::error_handler_t::replace);
}

std::string make_error_file(std::string_view message, std::string_view traceback, std::int64_t time_s) {
  const json file{
      {"message",
       {{"message", message}, {"extraInfo", {{"py_callstack", traceback}, {"timestamp", std::to_string(time_s)}}}}}};
  return file.dump(-1, ' ', true, json::error_handler_t::replace);
}

}  // namespace torchup
