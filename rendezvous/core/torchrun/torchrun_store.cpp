#include "rendezvous/core/torchrun/torchrun_store.hpp"

#include <fmt/format.h>

#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/core/text/names.hpp"

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

bool has_node(const TorchrunState& state, const TorchrunNode& node) {
  return state.participants.contains(node) || state.wait_list.contains(node) || state.redundancy_list.contains(node);
}

std::string torchrun_state_key(const RunId& run_id) { return fmt::format("torch.rendezvous.{}", run_id.value()); }

std::string torchrun_round_key(const RunId& run_id, std::int64_t round, const std::string& name) {
  return fmt::format("torch.rendezvous.{}.{}/{}", run_id.value(), round, name);
}

}  // namespace torchup
