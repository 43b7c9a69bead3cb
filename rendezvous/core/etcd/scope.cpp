#include "rendezvous/core/etcd/scope.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "rendezvous/core/etcd/etcd_fields.hpp"
#include "rendezvous/core/text/endpoint_list.hpp"
#include "rendezvous/core/text/names.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup::etcd {
namespace {

constexpr std::int64_t holder_version = 1;
constexpr std::size_t holder_bytes_max = 16384;

bool stands_for_itself(char letter) {
  return (letter >= 'A' && letter <= 'Z') || (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9') ||
         letter == '.' || letter == '_' || letter == '-';
}

std::string percent_encoded(std::string_view text) {
  std::string encoded;
  for (const char letter : text) {
    if (stands_for_itself(letter)) {
      encoded += letter;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(letter));
    }
  }
  return encoded;
}

/// Of what percent_encoded makes, and of nothing else.
std::optional<std::string> percent_decoded(std::string_view text) {
  std::string bytes;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      bytes += text[at];
      continue;
    }
    unsigned value = 0;
    const std::string_view digits = text.substr(at + 1, 2);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != 2 || error != std::errc{} || end != digits.data() + 2) return {};
    bytes += static_cast<char>(value);
    at += 2;
  }
  if (percent_encoded(bytes) != text) return {};
  return bytes;
}

std::optional<std::uint64_t> number(std::string_view digits) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size()) return {};
  if (digits.size() > 1 && digits.front() == '0') return {};
  return value;
}

}  // namespace

std::string why_no_prefix(std::string_view prefix) {
  const auto refused = [&](std::string_view why) {
    return fmt::format("etcd_prefix '{}' {}: take one as /torchup", printable_start(prefix), why);
  };
  if (!prefix.starts_with('/')) return refused("does not begin with /");
  if (prefix.size() > prefix_bytes_max) return refused(fmt::format("is longer than {} bytes", prefix_bytes_max));
  const bool control = std::ranges::any_of(
      prefix, [](char letter) { return static_cast<unsigned char>(letter) < ' ' || letter == '\x7f'; });
  if (control) return refused("has a control character");
  return {};
}

Scope Scope::of_daemons(std::string_view prefix) { return Scope{std::string{prefix} + "/daemons"}; }

Scope Scope::of_job(std::string_view prefix, const RunId& run_id) {
  return Scope{std::string{prefix} + "/job/" + percent_encoded(run_id.value())};
}

std::string Scope::head(const RunId& run_id) const { return states() + percent_encoded(run_id.value()); }

std::string Scope::pieces(const RunId& run_id, std::uint64_t serial) const {
  return fmt::format("{}/{}/", head(run_id), serial);
}

std::string Scope::piece(const RunId& run_id, std::uint64_t serial, std::uint64_t index) const {
  return fmt::format("{}{}", pieces(run_id, serial), index);
}

std::optional<Scope::Place> Scope::place(std::string_view key) const {
  const std::string root = states();
  if (!key.starts_with(root)) return {};
  key.remove_prefix(root.size());
  const std::size_t first = key.find('/');
  const auto run_id = percent_decoded(key.substr(0, first));
  if (!run_id || run_id->empty()) return {};
  if (first == std::string_view::npos) return Place{.run_id = RunId{*run_id}, .head = true};
  key.remove_prefix(first + 1);
  const std::size_t second = key.find('/');
  if (second == std::string_view::npos) return {};
  const auto serial = number(key.substr(0, second));
  const auto index = number(key.substr(second + 1));
  if (!serial || !index) return {};
  return Place{.run_id = RunId{*run_id}, .serial = *serial, .index = *index};
}

std::string encode_holder(const Holder& holder) {
  nlohmann::ordered_json value{{"version", holder_version}, {"endpoints", nlohmann::ordered_json::array()}};
  for (const Endpoint& endpoint : holder.endpoints) value["endpoints"].push_back(to_string(endpoint));
  value["host"] = holder.host;
  value["node"] = holder.node;
  value["pid"] = holder.pid;
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<Holder> read_holder(std::string_view value) {
  const auto object = parse_object(value, holder_bytes_max);
  if (!object) return object.error();
  Fields fields{*object};
  const auto version = fields.plain_number("version");
  if (!fields.error() && version != holder_version) {
    return fail(errc::wrong_version,
                fmt::format("it is of version {}, and this release reads {}", version, holder_version));
  }
  Holder holder{.host = std::string{fields.text("host")},
                .node = std::string{fields.text("node")},
                .pid = fields.plain_number("pid")};
  const nlohmann::json& endpoints = fields.array("endpoints");
  if (endpoints.empty() || endpoints.size() > endpoints_max) fields.wrong("it has no endpoints, or too many");
  for (const auto& text : endpoints) {
    if (fields.error()) break;
    if (!text.is_string()) {
      fields.wrong("an endpoint is no string");
      break;
    }
    auto endpoint = parse_endpoint(text.get_ref<const std::string&>(), Port{0});
    if (!endpoint || endpoint->port == Port{0}) {
      fields.wrong("an endpoint is no host with a port");
    } else {
      holder.endpoints.push_back(std::move(*endpoint));
    }
  }
  for (const std::string* name : {&holder.host, &holder.node}) {
    if (const auto why = why_no_name(*name); !why.empty()) fields.wrong(fmt::format("a name: {}", why));
  }
  if (holder.pid < 0) fields.wrong("pid is below 0");
  if (fields.error()) return *fields.error();
  return holder;
}

}  // namespace torchup::etcd
