#include "rendezvous/core/text/json_text.hpp"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "rendezvous/core/text/utf8.hpp"

namespace torchup {
namespace {

bool is_plain(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 && byte < 0x7f && c != '"' && c != '\\' && c != '<';
}

void put_escaped(std::string& out, std::uint32_t code) {
  if (code == '"' || code == '\\') {
    out += '\\';
    out += static_cast<char>(code);
  } else if (code == '\n') {
    out += "\\n";
  } else {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", code);
  }
}

bool needs_escape(std::uint32_t code) {
  return code < 0x20 || code == '"' || code == '\\' || code == '<' || (code >= 0x7f && code < 0xa0) || code == 0x2028 ||
         code == 0x2029;
}

}  // namespace

void put_json(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    std::size_t plain = 0;
    while (plain < text.size() && is_plain(text[plain])) ++plain;
    out += text.substr(0, plain);
    text.remove_prefix(plain);
    if (text.empty()) break;
    const CodePoint character = first_code_point(text);
    if (character.bytes == 0) {
      out += "\xef\xbf\xbd";
      text.remove_prefix(1);
      continue;
    }
    if (needs_escape(character.code)) {
      put_escaped(out, character.code);
    } else {
      out += text.substr(0, character.bytes);
    }
    text.remove_prefix(character.bytes);
  }
  out += '"';
}

void JsonObject::put_name(std::string_view name) {
  if (out_.size() > begin_ + 1) out_ += ',';
  put_json(out_, name);
  out_ += ':';
}

JsonObject& JsonObject::text(std::string_view name, std::string_view value) {
  put_name(name);
  put_json(out_, value);
  return *this;
}

JsonObject& JsonObject::text_or_null(std::string_view name, std::string_view value) {
  return value.empty() ? null(name) : text(name, value);
}

JsonObject& JsonObject::number(std::string_view name, std::int64_t value) {
  put_name(name);
  fmt::format_to(std::back_inserter(out_), "{}", value);
  return *this;
}

JsonObject& JsonObject::number_or_null(std::string_view name, std::optional<std::int64_t> value) {
  return value ? number(name, *value) : null(name);
}

JsonObject& JsonObject::real(std::string_view name, double value, int decimals) {
  if (!std::isfinite(value)) return null(name);
  put_name(name);
  fmt::format_to(std::back_inserter(out_), "{:.{}f}", value, decimals);
  return *this;
}

JsonObject& JsonObject::flag(std::string_view name, bool value) { return json(name, value ? "true" : "false"); }

JsonObject& JsonObject::null(std::string_view name) { return json(name, "null"); }

JsonObject& JsonObject::json(std::string_view name, std::string_view value) {
  put_name(name);
  out_ += value;
  return *this;
}

}  // namespace torchup
