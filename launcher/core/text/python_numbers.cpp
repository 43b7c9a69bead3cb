#include "launcher/core/text/python_numbers.hpp"

#include <charconv>
#include <cmath>
#include <string>

#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

/// Removes `_` that stand between digits; nothing when one stands elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string plain;
  const auto digit = [&](std::size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '_') {
      plain += text[at];
    } else if (at == 0 || !digit(at - 1) || !digit(at + 1)) {
      return std::nullopt;
    }
  }
  return plain;
}

}  // namespace

std::optional<std::int64_t> python_int(std::string_view text) {
  text = stripped(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const auto plain = without_underscores(text);
  if (!plain || plain->empty() || plain->find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  std::int64_t value = 0;
  const std::string signed_text = (negative ? "-" : "") + *plain;
  const auto [end, code] = std::from_chars(signed_text.data(), signed_text.data() + signed_text.size(), value);
  if (code != std::errc{}) return std::nullopt;
  return value;
}

std::optional<double> python_float(std::string_view text) {
  text = stripped(text);
  const auto plain = without_underscores(text.starts_with('+') ? text.substr(1) : text);
  if (!plain || plain->empty() || plain->starts_with('+')) return std::nullopt;
  double value = 0;
  const auto [end, code] = std::from_chars(plain->data(), plain->data() + plain->size(), value);
  if (code != std::errc{} || end != plain->data() + plain->size() || std::isnan(value)) return std::nullopt;
  return value;
}

}  // namespace torchup
