#include "rendezvous/core/etcd/etcd_conf.hpp"

#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <utility>

#include "rendezvous/core/etcd/scope.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup::etcd {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::string take(std::map<std::string, std::string>& items, const char* key, std::string otherwise = {}) {
  const auto found = items.find(key);
  if (found == items.end()) return otherwise;
  std::string value = std::move(found->second);
  items.erase(found);
  return value;
}

}  // namespace

Result<std::map<std::string, std::string>> split_conf(const std::string& text) {
  std::map<std::string, std::string> items;
  std::string_view rest = trimmed(text);
  if (rest.empty()) return items;
  for (;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const std::size_t equals = item.find('=');
    const std::string_view key = trimmed(item.substr(0, equals));
    if (key.empty()) return fail(errc::bad_value, "it must be in the format KEY=VALUE,KEY=VALUE");
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view{} : trimmed(item.substr(equals + 1));
    if (value.empty()) return fail(errc::bad_value, fmt::format("'{}' must have a value", printable_start(key)));
    items.insert_or_assign(std::string{key}, std::string{value});
    if (comma == std::string_view::npos) return items;
    rest.remove_prefix(comma + 1);
  }
}

Result<Conf> read_conf(std::map<std::string, std::string>& items) {
  Conf conf;
  conf.ca_file = take(items, "cacert");
  conf.cert_file = take(items, "cert");
  conf.key_file = take(items, "key");
  conf.protocol = take(items, "protocol", conf.key_file.empty() ? "http" : "https");
  conf.prefix = take(items, "etcd_prefix", conf.prefix);
  conf.user = take(items, "user");
  conf.password_file = take(items, "password_file");
  const std::string port = take(items, "port", "0");
  const auto bad = [](std::string what) { return fail(errc::bad_value, std::move(what)); };
  if (conf.protocol != "http" && conf.protocol != "https") {
    return bad(fmt::format("protocol={} is neither http nor https", printable_start(conf.protocol)));
  }
  if (conf.cert_file.empty() != conf.key_file.empty()) {
    return bad(conf.cert_file.empty() ? "key is given without cert: name the certificate that it belongs to"
                                      : "cert is given without key: name its private key");
  }
  if (conf.protocol == "http" && !(conf.cert_file.empty() && conf.ca_file.empty())) {
    return bad("protocol=http uses no certificates: leave cacert, cert and key out, or say protocol=https");
  }
  if (const std::string why = why_no_prefix(conf.prefix); !why.empty()) return bad(why);
  if (conf.user.empty() && !conf.password_file.empty()) return bad("password_file is given without user");
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc{} || end != port.data() + port.size()) {
    return bad(fmt::format("port={} is none of 0 to 65535", printable_start(port)));
  }
  conf.port = Port{number};
  return conf;
}

}  // namespace torchup::etcd
