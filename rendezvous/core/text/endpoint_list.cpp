#include "rendezvous/core/text/endpoint_list.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/core/text/source_list.hpp"

namespace torchup {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

/// "a:1:2" and "[::1]:1:2". An IPv6 address that lacks its brackets is another mistake, with or without a port.
bool has_two_ports(std::string_view item) {
  const std::size_t bracket = item.starts_with('[') ? item.rfind(']') : std::string_view::npos;
  const std::string_view tail = bracket == std::string_view::npos ? item : item.substr(bracket + 1);
  if (std::ranges::count(tail, ':') < 2) return false;
  if (tail.size() < item.size()) return true;
  return !read_address(item) && !read_address(item.substr(0, item.rfind(':')));
}

}  // namespace

Result<std::vector<Endpoint>> parse_endpoints(std::string_view text, Port default_port) {
  const std::string_view all = text;
  const bool several = text.find(',') != std::string_view::npos;
  std::vector<Endpoint> endpoints;
  for (std::size_t number = 1;; ++number) {
    if (number > endpoints_max) {
      return fail(errc::limit_exceeded,
                  fmt::format("The list of endpoints '{}' has more than {}: name those that are tried first",
                              printable_start(all), endpoints_max));
    }
    const std::size_t comma = text.find(',');
    const std::string_view item = trimmed(text.substr(0, comma));
    if (several && item.empty()) {
      return fail(errc::bad_value, fmt::format("The list of endpoints '{}' has nothing at place {}: write it without "
                                               "the comma there, or name the endpoint that is missing",
                                               printable_start(all), number));
    }
    if (has_two_ports(item)) {
      return fail(errc::bad_value, fmt::format("The endpoint '{}' has two ports: give it one, and separate endpoints "
                                               "by commas",
                                               printable_start(item)));
    }
    auto endpoint = parse_endpoint(item, default_port);
    if (!endpoint) return endpoint.error();
    if (std::ranges::find(endpoints, *endpoint) == endpoints.end()) endpoints.push_back(std::move(*endpoint));
    if (comma == std::string_view::npos) return endpoints;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace torchup
