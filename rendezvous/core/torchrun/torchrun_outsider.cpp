#include "rendezvous/core/torchrun/torchrun_outsider.hpp"

#include <algorithm>
#include <utility>

namespace torchup {
namespace {

/// How often somebody who is called back is called again.
constexpr Duration call_pace = std::chrono::seconds{1};
/// A node may be on its way from one list to the other for so long.
constexpr Duration absence = std::chrono::seconds{3};

}  // namespace

Result<> TorchrunOutsider::gather(TorchrunBoard& board, TorchrunStore& store, const std::vector<TorchrunNode>& former,
                                  TimePoint now, UtcTime utc) {
  if (!board.state().complete && !absent_since_) {  // all have left the last round: it would call for a second one
    if (auto dismissed = dismiss_caller(board, store); !dismissed) return dismissed;
  }
  if (auto called = call_back(board, store, former, now, utc); !called) return called;
  return cut_last_call(board, store, now);
}

/// Members of our last round that are nowhere in the state may live, and still be in that round.
Result<> TorchrunOutsider::call_back(TorchrunBoard& board, TorchrunStore& store,
                                     const std::vector<TorchrunNode>& former, TimePoint now, UtcTime utc) {
  const bool absent = std::ranges::any_of(
      former, [&](const TorchrunNode& node) { return node != me_ && !has_node(board.state(), node); });
  if (!absent || board.state().complete) {
    absent_since_.reset();
    return {};
  }
  if (!absent_since_) absent_since_ = now;
  if (now - *absent_since_ < absence) return {};
  return board.write(store, [&](TorchrunState& state) {
    const auto called = state.last_heartbeats.find(caller_);
    const bool lately = called != state.last_heartbeats.end() && utc - called->second < call_pace;
    if (state.wait_list.contains(caller_) && lately) return false;
    state.wait_list.insert(caller_);
    state.last_heartbeats[caller_] = utc;
    return true;
  });
}

Result<> TorchrunOutsider::cut_last_call(TorchrunBoard& board, TorchrunStore& store, TimePoint now) {
  const auto all_here = [&](const TorchrunState& state) {
    return !state.complete && !state.closed && state.round > 0 && state.deadline && state.participants.contains(me_) &&
           state.wait_list.empty() && state.redundancy_list.empty();
  };
  const std::size_t here = board.state().participants.size();
  if (!all_here(board.state()) || std::exchange(here_, here) != here) all_here_since_.reset();
  if (!all_here(board.state())) return {};
  if (!all_here_since_) all_here_since_ = now;
  if (now - *all_here_since_ < torchrun_passage) return {};
  return board.write(store, [&](TorchrunState& state) {
    if (!all_here(state) || state.participants.size() != here) return false;
    complete_round(state);
    return true;
  });
}

/// Torchrun's agents look at the wait list again when they have all roles.
Result<> TorchrunOutsider::formed(TorchrunBoard& board, TorchrunStore& store, TimePoint now) {
  if (board.state().wait_list.contains(caller_)) echo_until_ = now + torchrun_notice;
  return dismiss_caller(board, store);
}

Result<> TorchrunOutsider::call_together(TorchrunBoard& board, TorchrunStore& store, UtcTime utc) {
  return board.write(store, [&](TorchrunState& state) {
    const bool with_torchruns =
        std::ranges::any_of(state.participants, [](const auto& entry) { return !is_ours(entry.first); });
    if (!state.complete || !state.participants.contains(me_) || !state.wait_list.empty() || !with_torchruns)
      return false;
    state.wait_list.insert(caller_);
    state.last_heartbeats[caller_] = utc;
    return true;
  });
}

Result<> TorchrunOutsider::dismiss_caller(TorchrunBoard& board, TorchrunStore& store) {
  return board.write(store, [&](TorchrunState& state) {
    if (!state.wait_list.contains(caller_)) return false;
    remove_node(state, board.terms(), caller_);
    return true;
  });
}

}  // namespace torchup
