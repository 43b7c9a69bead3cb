// Requests of those who come over TCP, and bodies of orders: whatever is asked, nobody gets more than his right.
//
// Input: a byte for who asks, then lines: method, target, headers up to an empty one, and the body.
#include <algorithm>
#include <string>
#include <string_view>

#include "rendezvous/core/ops/event_ring.hpp"
#include "rendezvous/core/ops/ops_route.hpp"
#include "rendezvous/core/ops/withheld.hpp"
#include "rendezvous/core/text/percent.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

namespace {

std::string next_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string line{text.substr(0, end)};
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

OpsRequest request_in(std::string_view& text) {
  OpsRequest request{.method = next_line(text), .target = next_line(text)};
  for (std::string line = next_line(text); !line.empty(); line = next_line(text)) {
    const std::size_t colon = std::min(line.find(':'), line.size());
    request.headers.emplace_back(line.substr(0, colon), line.substr(std::min(colon + 1, line.size())));
  }
  return request;
}

bool is_open(OpsRoute route) {
  return route == OpsRoute::healthz || route == OpsRoute::readyz || route == OpsRoute::page;
}

bool steers(OpsRoute route) {
  return route == OpsRoute::order || route == OpsRoute::open_page || route == OpsRoute::log ||
         route == OpsRoute::stacks;
}

void check_names(std::string_view text) {
  const std::string encoded = percent_encoded(text);
  fuzz::require(percent_decoded(encoded) == text);
  const auto call = routed({.method = "GET", .target = "/v1/jobs/" + encoded}, {.right = Right::read});
  if (!text.empty()) fuzz::require(std::get<OpsCall>(call).run_id == text);
}

void check_withheld(std::string_view text) {
  const std::string part = withheld(text);
  fuzz::require(withheld(part) == part);
  if (!is_event(text)) return;
  EventRings rings{{}};
  rings.add("job", text);
  rings.read("job", 0, Right::read, 1,
             [](std::uint64_t seq, std::string_view event) { fuzz::require(seq == 1 && is_event(event)); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string_view text{reinterpret_cast<const char*>(data) + 1, size - 1};
  const OpsPeer peer{.address = "192.0.2.7", .by_loopback = (data[0] & 1U) != 0};
  const OpsAccess access{.control_token = "steer", .read_token = "look", .host_names = {"node1"}};
  check_names(text);
  check_withheld(text);
  const OpsRequest request = request_in(text);
  check_withheld(text);
  const auto caller = admitted(request, peer, access);
  if (std::holds_alternative<Refusal>(caller)) return 0;
  const Right right = std::get<OpsCaller>(caller).right;
  const auto names = [&](std::string_view token) {
    return std::any_of(request.headers.begin(), request.headers.end(),
                       [&](const auto& header) { return header.second.ends_with(token); });
  };
  fuzz::require(right != Right::control || names("steer"));
  fuzz::require(right != Right::read || peer.by_loopback || names("look"));
  auto outcome = routed(request, std::get<OpsCaller>(caller));
  if (const auto* refusal = std::get_if<Refusal>(&outcome)) {
    fuzz::require(refusal->status >= 400 && is_event(error_body(*refusal).substr(0, error_body(*refusal).size() - 1)));
    return 0;
  }
  OpsCall& call = std::get<OpsCall>(outcome);
  fuzz::require(right != Right::none || is_open(call.route));
  fuzz::require(right == Right::control || !steers(call.route));
  fuzz::require(call.wait <= std::chrono::seconds{wait_seconds_max});
  if (takes_body(call)) (void)read_body(call, text);
  return 0;
}
