#include "rendezvous/core/torchrun/torchrun_store.hpp"

#include <fmt/format.h>

#include <utility>

#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/core/text/names.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

/// Local ids of our agents begin here.
constexpr std::int64_t our_local_ids = 1'000'000'000;
/// Sorts behind every letter and digit of an address.
constexpr char last_letter = '~';

}  // namespace

Result<MeetingPlace> read_place(const std::string& address, const std::string& port) {
  const auto why = address.empty() ? std::string_view{"it is empty"} : why_no_name(address);
  if (!why.empty())
    return fail(errc::bad_frame, fmt::format("the address of the workers' store cannot be used: {}", why));
  const auto number = read_port(port);
  if (!number) {
    return fail(errc::bad_frame, "the port of the workers' store cannot be read: " + port.substr(0, 200));
  }
  return MeetingPlace{address, *number};
}

TorchrunNode our_node(const std::string& address, std::int64_t pid, std::int64_t number, bool to_be_last) {
  return {to_be_last ? last_letter + address : address, pid, our_local_ids + number};
}

bool is_ours(const TorchrunNode& node) { return node.local_id >= our_local_ids || is_caller(node); }

TorchrunNode caller_for(const TorchrunNode& node) { return {last_letter + shown(node), node.pid, -1 - node.local_id}; }

bool is_caller(const TorchrunNode& node) { return node.local_id < 0; }

std::string shown(const TorchrunNode& node) {
  const bool marked = is_ours(node) && node.addr.starts_with(last_letter);
  return marked ? node.addr.substr(1) : node.addr;
}

std::string shown(const std::vector<TorchrunNode>& nodes) {
  std::vector<std::string> list;
  for (const TorchrunNode& node : nodes) list.push_back(shown(node));
  return join_names(list);
}

std::optional<std::vector<TorchrunNode>> by_group_rank(const TorchrunState& state) {
  std::vector<std::optional<TorchrunNode>> seats(state.participants.size());
  for (const auto& [node, rank] : state.participants) {
    if (rank < 0 || static_cast<std::size_t>(rank) >= seats.size()) return {};
    auto& seat = seats[static_cast<std::size_t>(rank)];
    if (seat) return {};
    seat = node;
  }
  std::vector<TorchrunNode> nodes;
  for (auto& seat : seats) nodes.push_back(*std::move(seat));
  return nodes;
}

Result<std::optional<MeetingPlace>> published_place(TorchrunStore& store, const RunId& run_id, std::int64_t round) {
  auto address = store.find(torchrun_round_key(run_id, round, torchrun_key::master_address));
  if (!address) return address.error();
  auto port = store.find(torchrun_round_key(run_id, round, torchrun_key::master_port));
  if (!port) return port.error();
  if (!*address || !*port) return std::optional<MeetingPlace>{};
  auto place = read_place(**address, **port);
  if (!place) return place.error();
  return std::optional{*std::move(place)};
}

Result<> publish_place(TorchrunStore& store, const RunId& run_id, std::int64_t round, const MeetingPlace& place) {
  const auto key = [&](const char* name) { return torchrun_round_key(run_id, round, name); };
  if (auto set = store.set(key(torchrun_key::master_address), place.address); !set) return set;
  return store.set(key(torchrun_key::master_port), fmt::format("{}", place.port.value()));
}

bool has_node(const TorchrunState& state, const TorchrunNode& node) {
  return state.participants.contains(node) || state.wait_list.contains(node) || state.redundancy_list.contains(node);
}

std::string torchrun_state_key(const RunId& run_id) { return fmt::format("torch.rendezvous.{}", run_id.value()); }

std::string torchrun_round_key(const RunId& run_id, std::int64_t round, const std::string& name) {
  return fmt::format("torch.rendezvous.{}.{}/{}", run_id.value(), round, name);
}

}  // namespace torchup
