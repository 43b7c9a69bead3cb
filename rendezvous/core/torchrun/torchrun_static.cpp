#include "rendezvous/core/torchrun/torchrun_static.hpp"

#include <fmt/format.h>

#include <utility>

#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/torchrun/torchrun_seating.hpp"

namespace torchup {

bool static_torchrun_waits(TorchrunStore& store, const RunId& run_id, int nodes) {
  for (int group_rank = 0; group_rank < nodes; ++group_rank) {
    const auto role = store.find(fmt::format("{}/{}", run_id.value(), role_name(group_rank)));
    if (role && *role) return true;
  }
  return false;
}

void forget_static_meeting(TorchrunStore& store, const RunId& run_id, int nodes) {
  const auto erase = [&](const std::string& name) { store.erase(fmt::format("{}/{}", run_id.value(), name)); };
  for (int group_rank = 0; group_rank < nodes; ++group_rank) {
    erase(role_name(group_rank));
    erase(ranks_name(group_rank));
  }
  for (const char* const name : {torchrun_key::master_address, torchrun_key::master_port, torchrun_key::barrier_count})
    erase(name);
}

// ---- what the agent says

void TorchrunStatic::said(const AgentMessage& message, TimePoint now) {
  now_ = now;
  if (phase_ != Phase::over) std::visit([this](const auto& word) { said(word); }, message);
}

void TorchrunStatic::said(const Join& join) {
  join_ = join;
  role_told_ = false;
  since_ = now_;
  phase_ = Phase::joining;
  if (!join.group_rank) end({.exit_code = 68, .reason = "a static rendezvous needs --node-rank on every node"});
}

void TorchrunStatic::said(const StoreReady& ready) { own_port_ = ready.port; }

void TorchrunStatic::said(const WorkersFailed& failed) {
  if (phase_ != Phase::running || failed.round.value() != round_ || failed.failures.empty()) return;
  const JobTerms& terms = join_->terms;
  const std::string cause = fmt::format("rank {} failed", failed.failures[root_cause(failed.failures)].rank.value());
  if (!failed.may_restart || !restarts_.spend(terms, now_)) {
    const std::string reason = cause + (terms.max_restarts > 0 ? "; all restarts of this node are used up" : "");
    return end({.exit_code = 1, .reason = reason, .failures = failed.failures});
  }
  phase_ = Phase::stopping;
  told_.push_back(StopWorkers{
      Round{round_++}, StopCause::worker_failure,
      fmt::format("{}; restart {} of {} of this node", cause, restarts_.used(terms, now_), terms.max_restarts)});
}

void TorchrunStatic::said(const WorkersSucceeded& succeeded) {
  if (phase_ != Phase::running || succeeded.round.value() != round_) return;
  phase_ = Phase::leaving_together;
  since_ = now_;
}

void TorchrunStatic::said(const Leave& leave) { end(verdict_of(leave)); }

Duration TorchrunStatic::pace() const {
  return phase_ == Phase::joining || phase_ == Phase::leaving_together ? busy_pace : quiet_pace;
}

Result<std::vector<CoordinatorMessage>> TorchrunStatic::turn(TorchrunStore& store, TimePoint now, UtcTime) {
  now_ = now;
  Result<> done;
  if (phase_ == Phase::joining) done = join(store);
  if (phase_ == Phase::leaving_together) done = barrier(store);
  // Nothing else is asked while workers run; whether the store is there still is worth a question.
  if (phase_ == Phase::running) {
    if (const auto there = store.find(key(ranks_name(group_rank()))); !there) done = there.error();
  }
  if (!done) return done.error();
  return std::exchange(told_, {});
}

// ---- into the round

Result<> TorchrunStatic::join(TorchrunStore& store) {
  if (auto told = tell_role(store); !told) return told;
  if (auto found = find_place(store); !found) return found;
  if (group_rank() == 0 && settings_.place) {
    auto shared = share_torchrun_ranks(
        store, [this](const std::string& name) { return key(name); }, nodes());
    if (!shared) return shared.error();
  }
  auto text = store.find(key(ranks_name(group_rank())));
  if (!text) return text.error();
  if (!*text || !settings_.place) {
    if (now_ - since_ > join_->terms.join_timeout) {
      end({.exit_code = exit_code::too_few,
           .reason = fmt::format("not all {} nodes came within the join timeout", nodes())});
    }
    return {};
  }
  const auto ranks = read_ranks(**text, nodes(), join_->local_world_size);
  if (!ranks) return end({.exit_code = 1, .reason = ranks.error().context}), Result<>{};
  phase_ = Phase::running;
  Placement place = placed_by(*ranks, Round{round_}, *join_->group_rank, nodes(), *settings_.place);
  place.restart_count = restarts_.count();
  told_.push_back(Placed{std::move(place), false});
  return {};
}

Result<> TorchrunStatic::tell_role(TorchrunStore& store) {
  if (std::exchange(role_told_, true)) return {};
  // Torchrun's group rank 0 waits until all have counted themselves; where the store is ours, nobody does.
  if (!store.owner() && !std::exchange(counted_in_, true)) {
    if (auto counted = store.count_in(); !counted) return counted;
  }
  return store.set(key(role_name(group_rank())), write_role(*join_, group_rank()));
}

Result<> TorchrunStatic::find_place(TorchrunStore& store) {
  if (settings_.place) return {};
  if (group_rank() != 0) {
    auto address = store.find(key(torchrun_key::master_address));
    if (!address) return address.error();
    auto port = store.find(key(torchrun_key::master_port));
    if (!port) return port.error();
    if (!*address || !*port) return {};
    auto place = read_place(**address, **port);
    if (!place) return place.error();
    settings_.place = *std::move(place);
    return {};
  }
  if (!own_port_) {
    if (!asked_) begin_meeting(store);
    if (!std::exchange(asked_, true)) told_.push_back(HostStore{Round{round_}});
    return {};
  }
  settings_.place = MeetingPlace{settings_.address, *own_port_};
  if (auto set = store.set(key(torchrun_key::master_address), settings_.address); !set) return set;
  return store.set(key(torchrun_key::master_port), fmt::format("{}", own_port_->value()));
}

/// Nobody can have come to the exit barrier yet, nor have been given ranks.
void TorchrunStatic::begin_meeting(TorchrunStore& store) const {
  for (int group_rank = 0; group_rank < nodes(); ++group_rank) store.erase(key(ranks_name(group_rank)));
  store.erase(key(torchrun_key::barrier_count));
  store.erase(key(torchrun_key::barrier_open));
}

// ---- out of it

Result<> TorchrunStatic::barrier(TorchrunStore& store) {
  if (!std::exchange(counted_out_, true)) {
    auto count = store.add(key(torchrun_key::barrier_count), 1);
    if (!count) return count.error();
    if (*count == nodes()) {
      if (auto set = store.set(key(torchrun_key::barrier_open), "<val_ignored>"); !set) return set;
    }
  }
  auto open = store.find(key(torchrun_key::barrier_open));
  if (!open) return open.error();
  if (*open || now_ - since_ > barrier_limit) end({.exit_code = 0, .reason = "all workers exited 0"});
  return {};
}

void TorchrunStatic::end(Verdict verdict) {
  if (phase_ == Phase::over) return;
  phase_ = Phase::over;
  told_.push_back(End{std::move(verdict)});
}

}  // namespace torchup
