#include "rendezvous/core/ops/page_text.hpp"

#include <fmt/format.h>

namespace torchup {

extern const std::string_view status_page_text;  // embedded: net/ops/status_page.html

namespace {

constexpr std::string_view nonce_mark = "@nonce@";
constexpr std::string_view data_mark = "@data@";

/// Where an HTML parser sees no tag, and JSON the same text: it has `<` in strings only.
void append_as_data(std::string_view json, std::string& out) {
  for (const char c : json) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
}

}  // namespace

std::string report_text(std::string_view nonce, std::string_view data) {
  std::string out;
  out.reserve(status_page_text.size() + data.size() + 256);
  std::string_view rest = status_page_text;
  for (std::size_t at = rest.find('@'); at != std::string_view::npos; at = rest.find('@')) {
    out += rest.substr(0, at);
    rest.remove_prefix(at);
    if (rest.starts_with(nonce_mark)) {
      out += nonce;
      rest.remove_prefix(nonce_mark.size());
    } else if (rest.starts_with(data_mark)) {
      append_as_data(data, out);
      rest.remove_prefix(data_mark.size());
    } else {
      out += '@';
      rest.remove_prefix(1);
    }
  }
  return out += rest;
}

std::string page_text(std::string_view nonce) { return report_text(nonce, "null"); }

std::string page_policy(std::string_view nonce) {
  return fmt::format(
      "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; connect-src 'self'; frame-ancestors 'none'; "
      "base-uri 'none'; form-action 'none'",
      nonce);
}

}  // namespace torchup
