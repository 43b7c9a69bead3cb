#include "rendezvous/core/text/endpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "rendezvous/core/text/source_list.hpp"

namespace torchup {
namespace {

bool is_space(char letter) { return letter == ' ' || (letter >= '\t' && letter <= '\r'); }

std::string_view strip(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

/// torchrun's ^[\w\.:-]+$; letters outside ASCII count as word characters.
bool is_host(std::string_view text) {
  const auto fits = [](char letter) {
    return (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           letter == '_' || letter == '.' || letter == ':' || letter == '-' || (letter & 0x80) != 0;
  };
  return !text.empty() && std::all_of(text.begin(), text.end(), fits);
}

}  // namespace

Result<Endpoint> parse_endpoint(std::string_view text, Port default_port) {
  const std::string shown{text.substr(0, 256)};
  text = strip(text);
  if (text.empty()) return Endpoint{"localhost", default_port};

  std::string_view host = text;
  std::optional<std::string_view> port_text;
  const bool all_host = text.front() == '[' && text.back() == ']';
  if (const std::size_t colon = text.rfind(':'); !all_host && colon != std::string_view::npos) {
    host = text.substr(0, colon);
    port_text = text.substr(colon + 1);
    if (host.find(':') != std::string_view::npos && host.front() != '[') {
      return fail(errc::bad_value, "The endpoint '" + shown + "' is an IPv6 address without brackets: is it '[" +
                                       std::string{text} + "]' or '[" + std::string{host} +
                                       "]:" + std::string{*port_text} + "'?");
    }
  }
  Port port = default_port;
  if (port_text) {
    std::uint16_t value = 0;
    const auto [end, error] = std::from_chars(port_text->data(), port_text->data() + port_text->size(), value);
    if (port_text->empty() || port_text->size() > 5 || error != std::errc{} ||
        end != port_text->data() + port_text->size()) {
      return fail(errc::bad_value,
                  "The port number of the rendezvous endpoint '" + shown + "' must be an integer between 0 and 65536.");
    }
    port = Port{value};
  }
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (!is_host(host)) {
    return fail(errc::bad_value, "The hostname of the rendezvous endpoint '" + shown +
                                     "' must be a dot-separated list of labels, an IPv4 address, or an IPv6 address.");
  }
  return Endpoint{std::string{host}, port};
}

std::optional<Port> read_port(std::string_view text) {
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number == 0) return {};
  return Port{number};
}

std::string to_string(const Endpoint& endpoint) {
  const bool brackets = endpoint.host.find(':') != std::string::npos;
  return brackets ? fmt::format("[{}]:{}", endpoint.host, endpoint.port.value())
                  : fmt::format("{}:{}", endpoint.host, endpoint.port.value());
}

bool is_loopback(std::string_view address) {
  static const SourceList loopback = *SourceList::read("127.0.0.0/8,::1");
  return loopback.contains(address);
}

}  // namespace torchup
