#include "rendezvous/core/etcd/etcd_failure.hpp"

#include <fmt/format.h>

#include "rendezvous/core/etcd/etcd_fields.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup::etcd {
namespace {

constexpr std::size_t failure_bytes_max = 65536;

// gRPC's codes, as etcd uses them.
constexpr std::int64_t invalid_argument = 3, deadline_exceeded = 4, not_found = 5, permission_denied = 7,
                       resource_exhausted = 8, out_of_range = 11, internal = 13, unavailable = 14, unauthenticated = 16;

Cause cause_of(std::int64_t code, std::string_view words, bool logged_in) {
  const auto says = [&](std::string_view part) { return words.find(part) != std::string_view::npos; };
  switch (code) {
    case unauthenticated:
      return Cause::log_in;
    case permission_denied:
      return Cause::forbidden;
    case deadline_exceeded:
    case internal:
    case unavailable:
      return Cause::away;
    case not_found:
      return says("lease not found") ? Cause::lease_gone : Cause::other;
    case resource_exhausted:
      return says("space exceeded") ? Cause::full : says("larger than max") ? Cause::too_large : Cause::away;
    case out_of_range:
      return says("compacted") ? Cause::compacted : Cause::other;
    case invalid_argument:
      if (says("too large")) return Cause::too_large;
      if (says("user name is empty")) return logged_in ? Cause::log_in : Cause::forbidden;
      return says("authentication failed") || says("CommonName") ? Cause::forbidden : Cause::other;
    default:
      return says("no leader") || says("timed out") ? Cause::away : Cause::other;
  }
}

}  // namespace

Failure failure_of(unsigned status, std::string_view body, bool logged_in) {
  const auto object = parse_object(body, failure_bytes_max);
  const bool shaped = object && object->contains("code") && object->at("code").is_number_integer();
  if (!shaped) {
    // A proxy before etcd says so in its own words.
    if (status == 502 || status == 503 || status == 504) return {Cause::away, fmt::format("HTTP status {}", status)};
    return {Cause::no_etcd, fmt::format("is no etcd 3.4 or newer ({})", status)};
  }
  Fields fields{*object};
  std::string_view words = fields.text("message");
  if (words.empty()) words = fields.text("error");
  const auto code = object->at("code").get<std::int64_t>();
  std::string shown = words.empty() ? fmt::format("HTTP status {}, code {}", status, code) : printable_start(words);
  return {cause_of(code, words, logged_in), std::move(shown)};
}

}  // namespace torchup::etcd
