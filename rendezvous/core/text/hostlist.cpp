#include "rendezvous/core/text/hostlist.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <utility>

#include "rendezvous/core/text/names.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

Error bad(std::string_view text, std::string_view why) {
  return fail(errc::bad_value, fmt::format("host list \"{}\": {}", printable_start(text), why));
}
Error too_many() {
  return fail(errc::limit_exceeded, fmt::format("host list: more than {} hosts", hostlist_hosts_max));
}
Error too_long() {
  return fail(errc::limit_exceeded, fmt::format("host list: a host's name is longer than {} bytes", name_bytes_max));
}

/// What has been made of a list so far.
class Bytes {
 public:
  /// False: they are too many.
  [[nodiscard]] bool add(std::size_t bytes) { return (sum_ += bytes) <= hostlist_bytes_max; }
  static Error too_many() {
    return fail(errc::limit_exceeded, fmt::format("host list: the names have more than {} bytes", hostlist_bytes_max));
  }

 private:
  std::size_t sum_ = 0;
};

std::optional<std::size_t> number(std::string_view text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

/// Cuts `text` at the next comma outside brackets.
std::string_view next_item(std::string_view& text) {
  int depth = 0;
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if (text[at] == '[') ++depth;
    if (text[at] == ']') --depth;
    if (text[at] == ',' && depth == 0) break;
  }
  const std::string_view item = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return item;
}

/// The texts that "01-03,7" stands for.
Result<std::vector<std::string>> expand_ranges(std::string_view whole, std::string_view ranges) {
  std::vector<std::string> result;
  Bytes bytes;
  bool more = true;
  while (more) {
    const std::size_t comma = ranges.find(',');
    const std::string_view range = ranges.substr(0, comma);
    more = comma != std::string_view::npos;
    ranges.remove_prefix(more ? comma + 1 : ranges.size());

    const std::size_t dash = range.find('-');
    const std::string_view first_text = range.substr(0, dash);
    const auto first = number(first_text);
    const auto last = dash == std::string_view::npos ? first : number(range.substr(dash + 1));
    if (!first || !last) return bad(whole, "brackets hold numbers and ranges of numbers");
    if (*last < *first) return bad(whole, fmt::format("the range {} runs backwards", printable_start(range)));
    if (first_text.size() > name_bytes_max) return too_long();
    const std::size_t further = *last - *first;  // numbers after the first: their count may be as large as the type
    if (further >= hostlist_hosts_max - result.size()) return too_many();
    for (std::size_t i = 0; i <= further; ++i) {
      result.push_back(fmt::format("{:0>{}}", *first + i, first_text.size()));
      if (!bytes.add(result.back().size())) return Bytes::too_many();
    }
  }
  return result;
}

Result<std::vector<std::string>> expand_item(std::string_view whole, std::string_view item) {
  if (std::ranges::count(item, '[') > hostlist_brackets_max) {
    return fail(errc::limit_exceeded,
                fmt::format("host list: more than {} brackets in one name", hostlist_brackets_max));
  }
  std::vector<std::string> names{""};
  while (!item.empty()) {
    const std::size_t open = item.find_first_of("[]");
    const std::string_view plain = item.substr(0, open);
    Bytes with_plain, with_endings;
    for (std::string& name : names) {
      if (name.size() + plain.size() > name_bytes_max) return too_long();
      if (!with_plain.add(name.size() + plain.size())) return Bytes::too_many();
      name += plain;
    }
    if (open == std::string_view::npos) break;
    item.remove_prefix(open);
    const std::size_t close = item.find(']');
    if (item.front() != '[' || close == std::string_view::npos) return bad(whole, "brackets do not match");
    const auto endings = expand_ranges(whole, item.substr(1, close - 1));
    if (!endings) return endings.error();
    if (names.size() * endings->size() > hostlist_hosts_max) return too_many();
    std::vector<std::string> longer;
    longer.reserve(names.size() * endings->size());
    for (const std::string& name : names) {
      for (const std::string& ending : *endings) {
        if (name.size() + ending.size() > name_bytes_max) return too_long();
        if (!with_endings.add(name.size() + ending.size())) return Bytes::too_many();
        longer.push_back(name + ending);
      }
    }
    names = std::move(longer);
    item.remove_prefix(close + 1);
  }
  return names;
}

}  // namespace

Result<std::vector<std::string>> expand_hostlist(std::string_view text) {
  std::vector<std::string> hosts;
  Bytes bytes;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view item = next_item(rest);
    if (item.empty()) return bad(text, "a name is empty");
    auto names = expand_item(text, item);
    if (!names) return names.error();
    if (const auto why = why_no_name(names->front()); !why.empty()) return bad(text, why);
    if (hosts.size() + names->size() > hostlist_hosts_max) return too_many();
    for (std::string& name : *names) {
      if (!bytes.add(name.size())) return Bytes::too_many();
      hosts.push_back(std::move(name));
    }
  }
  return hosts;
}

}  // namespace torchup
