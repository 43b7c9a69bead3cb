// The owner of a store writes what agents of ours are among torchrun's.
#include <algorithm>
#include <utility>

#include "rendezvous/core/torchrun/torchrun_care.hpp"

namespace torchup {
namespace {

/// From the round that it has left into the next: out, onto the wait list, in; a spare has one step more.
constexpr int steps_of_one = 4;

/// Whether it stands in the round still that it wants to leave.
bool has_to_leave(const TorchrunState& state, const OurNode& one) {
  if (one.stage == OurNode::Stage::leaves) return has_node(state, one.node);
  return one.stage == OurNode::Stage::wants_in && state.complete && state.round == one.round &&
         state.participants.contains(one.node);
}

/// Whether seek_step has something to do, asked before the state is copied.
bool has_to_seek(const TorchrunState& state, const OurNode& one, const TorchrunTerms& terms) {
  if (one.stage != OurNode::Stage::wants_in || state.closed || state.participants.contains(one.node)) return false;
  if (state.redundancy_list.contains(one.node)) return static_cast<int>(state.participants.size()) != terms.max_nodes;
  return !state.complete || !state.wait_list.contains(one.node);
}

}  // namespace

Result<> TorchrunCare::look(TorchrunStore& store) {
  wrote({}, store);
  if (refused_) return refused_->second;
  return {};
}

Result<> TorchrunCare::project(const std::vector<OurNode>& ours, const JobTerms& terms, TorchrunStore& store,
                               UtcTime utc) {
  if (auto read = look(store); !read) return read;
  if (ours.empty()) return forget_ours(), Result<>{};
  lease_ = terms.lease;
  min_nodes_ = terms.min_nodes;
  ours_.clear();
  for (const OurNode& one : ours) {
    if (one.stage != OurNode::Stage::leaves) ours_.emplace(one.node, one.stage);
  }
  if (auto left = let_leave(ours, store); !left) return left;
  const TorchrunTerms rules{.min_nodes = terms.min_nodes, .max_nodes = terms.max_nodes, .last_call = terms.last_call};
  for (const OurNode& one : ours) {
    if (auto entered = let_in(one, rules, store, utc); !entered) return entered;
  }
  if (may_call(known_, store)) (void)call_for_ours(store);
  return keep_ours_alive(store, utc);
}

/// All of them before any goes into the next round: the last one out begins it.
Result<> TorchrunCare::let_leave(const std::vector<OurNode>& ours, TorchrunStore& store) {
  for (const OurNode& one : ours) {
    if (!has_to_leave(known_, one)) continue;
    Result<> done;
    if (one.stage == OurNode::Stage::leaves) {
      done = take_out({one.node}, store);
    } else {
      TorchrunState state = known_;
      (void)exit_step(state, terms(), one.node);
      done = rewrite(state, store);
    }
    if (!done) return done;
  }
  return {};
}

Result<> TorchrunCare::let_in(const OurNode& one, const TorchrunTerms& rules, TorchrunStore& store, UtcTime utc) {
  for (int i = 0; i < steps_of_one && has_to_seek(known_, one, rules); ++i) {
    TorchrunState state = known_;
    (void)seek_step(state, rules, one.node, utc);
    if (auto written = rewrite(state, store); !written) return written;
  }
  return {};
}

/// One of ours stops its workers. True: the others are called.
bool TorchrunCare::call_for_ours(TorchrunStore& store) {
  for (const auto& [node, stage] : ours_) {
    if (stage != OurNode::Stage::stops || !known_.participants.contains(node)) continue;
    call(store, "node " + shown(node) + " stops its workers");
    return true;
  }
  return false;
}

Result<> TorchrunCare::keep_ours_alive(TorchrunStore& store, UtcTime utc) {
  const Duration pace = interval_.pace(lease_);
  // One that lies in the future is of a clock that was set back since.
  const auto is_fresh = [&](UtcTime heartbeat) { return utc - heartbeat < pace && heartbeat - utc < pace; };
  const auto due = [&](const auto& one) {
    const auto heartbeat = known_.last_heartbeats.find(one.first);
    return heartbeat != known_.last_heartbeats.end() && !is_fresh(heartbeat->second);
  };
  if (known_.closed || std::ranges::none_of(ours_, due)) return {};
  TorchrunState state = known_;
  for (const auto& [node, stage] : ours_) {
    const auto heartbeat = state.last_heartbeats.find(node);
    if (heartbeat != state.last_heartbeats.end()) heartbeat->second = utc;
  }
  return rewrite(state, store);
}

Result<> TorchrunCare::close(TorchrunStore& store) {
  if (look(store) && known_.closed) return {};
  TorchrunState state = refused_ ? TorchrunState{} : known_;
  state.closed = true;
  const auto present = store.find(torchrun_state_key(settings_.run_id));
  if (!present) return present.error();
  auto held = store.compare_set(torchrun_state_key(settings_.run_id), present->value_or(""),
                                to_base64(write_torchrun_state(state)));
  if (!held) return held.error();
  return look(store);
}

}  // namespace torchup
