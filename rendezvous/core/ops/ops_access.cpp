// Who asks, and what he may.
#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/core/ops/ops_route.hpp"
#include "rendezvous/core/text/same_secret.hpp"
#include "rendezvous/core/text/source_list.hpp"

namespace torchup {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool same_name(std::string_view left, std::string_view right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](char a, char b) { return lower(a) == lower(b); });
}

std::size_t count(const OpsRequest& request, std::string_view name) {
  return static_cast<std::size_t>(
      std::count_if(request.headers.begin(), request.headers.end(),
                    [&](const OpsRequest::Header& header) { return same_name(header.first, name); }));
}

/// Without port and brackets; empty when it is neither a name nor an address with a port or without.
std::string_view host_of(std::string_view text) {
  std::string_view port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return "";
    port = text.substr(end + 1);
    text = text.substr(1, end - 1);
    if (text.find(':') == std::string_view::npos) return "";  // brackets are for IPv6
  } else if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
    port = text.substr(colon);
    text = text.substr(0, colon);
  }
  const bool digits =
      std::all_of(port.begin() + (port.empty() ? 0 : 1), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!port.empty() && (port.front() != ':' || port.size() > 6 || !digits)) return "";
  if (text.size() > 1 && text.ends_with('.')) text.remove_suffix(1);
  return text;
}

/// No foreign page can be served from such a name: what its own name leads to is its server's to say, but an address is
/// no name, and these names are ours.
bool names_us(std::string_view sent, const OpsAccess& access) {
  const std::string_view host = host_of(sent);
  if (host.empty()) return false;
  if (read_address(host) || same_name(host, "localhost")) return true;
  return std::any_of(access.host_names.begin(), access.host_names.end(),
                     [&](const std::string& name) { return same_name(host, name); });
}

/// Behind "Bearer"; empty for another scheme.
std::string_view bearer_of(std::string_view sent) {
  constexpr std::string_view scheme = "Bearer ";
  if (!same_name(sent.substr(0, scheme.size()), scheme)) return "";
  sent.remove_prefix(scheme.size());
  sent.remove_prefix(std::min(sent.find_first_not_of(' '), sent.size()));
  return sent;
}

/// Each is compared, so that the time does not show which one it is.
Right right_of(std::string_view token, const OpsAccess& access) {
  Right right = Right::none;
  const auto compare = [&](const std::string& known, Right gives) {
    if (!known.empty() && same_secret(token, known)) right = std::max(right, gives);
  };
  compare(access.read_token, Right::read);
  compare(access.control_token, Right::control);
  compare(access.page_token, Right::control);
  return right;
}

OrRefusal<OpsCaller> by_socket(const OpsPeer::User& user, const OpsAccess& access) {
  if (user.uid != access.own_uid && user.uid != 0) {
    return Refusal{403, "forbidden", "Only the user whose job it is, and root", ""};
  }
  const std::string by = user.name.empty() ? fmt::format("user of uid {}", user.uid)
                                           : fmt::format("user {} (uid {})", user.name, user.uid);
  return OpsCaller{.right = Right::control, .by = by, .proved = true, .by_socket = true};
}

}  // namespace

std::optional<std::string_view> header(const OpsRequest& request, std::string_view name) {
  for (const auto& [known, value] : request.headers) {
    if (same_name(known, name)) return value;
  }
  return std::nullopt;
}

OrRefusal<OpsCaller> admitted(const OpsRequest& request, const OpsPeer& peer, const OpsAccess& access) {
  if (peer.user) return by_socket(*peer.user, access);
  const auto host = header(request, "host");
  if (count(request, "host") > 1 || count(request, "authorization") > 1 || (request.http_1_1 && !host)) {
    return Refusal{400, "bad_request", "A request has one Host, and Authorization at most once", ""};
  }
  // The token that it may send has been heard by whoever listens; it is told before a second one is.
  if (access.https && !peer.encrypted && !peer.by_loopback) {
    return Refusal{403, "https_only", "From other machines this is answered over https alone", ""};
  }
  OpsCaller caller{.by = "somebody at " + peer.address};
  caller.token_helps = !access.control_token.empty() || !access.page_token.empty() ||
                       (!peer.by_loopback && !access.read_token.empty());
  if (const auto sent = header(request, "authorization")) {
    caller.right = right_of(bearer_of(*sent), access);
    if (caller.right == Right::none) return Refusal{401, "unauthorized", "That is not the token", ""};
    caller.proved = true;
    caller.by = "token from " + peer.address;
    return caller;
  }
  if (host && !names_us(*host, access)) {
    return Refusal{421, "misdirected_request",
                   "Without a token, Host is an address, localhost, this machine's name or one of --status-host", ""};
  }
  if (peer.by_loopback) caller.right = Right::read;
  return caller;
}

}  // namespace torchup
