#include "rendezvous/core/torchrun/torchrun_peer.hpp"
#include "rendezvous/base/exit_codes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace torchup {
namespace {

/// Of a spare: between the others' coming to the exit barrier and the end of their store lie some tens of milliseconds.
constexpr Duration spare_pace = std::chrono::milliseconds{20};
/// How long after a worker's failure another node's change may still show up as its cause: torchrun's agents look at
/// their workers each 100 ms, and stop them before they leave.
constexpr Duration doubt = std::chrono::milliseconds{400};

constexpr const char* closed_by_another = "the rendezvous was closed by another node, whose workers have failed";

}  // namespace

TorchrunPeer::TorchrunPeer(Settings settings)
    : settings_{std::move(settings)}, board_{settings_.run_id}, meeting_{settings_.run_id, settings_.address} {}

// ---- what the agent says

void TorchrunPeer::said(const AgentMessage& message, TimePoint now) {
  now_ = now;
  if (phase_ != Phase::over) std::visit([this](const auto& word) { said(word); }, message);
}

void TorchrunPeer::said(const Join& join) {
  join_ = join;
  board_.adopt(join.terms);
  join_until_ = now_ + join.terms.join_timeout;
  phase_ = Phase::leaving;
}

void TorchrunPeer::said(const StoreReady& ready) { meeting_.opened(ready.port); }

void TorchrunPeer::said(const WorkersFailed& failed) {
  if (phase_ != Phase::running || failed.round.value() != round_ || failed.failures.empty()) return;
  failed_ = failed;
  phase_ = Phase::doubting;
  doubt_until_ = now_ + (members_.size() > 1 ? doubt : Duration::zero());
}

void TorchrunPeer::said(const WorkersSucceeded& succeeded) {
  if (phase_ != Phase::running || succeeded.round.value() != round_) return;
  phase_ = Phase::leaving_together;
  barrier_since_ = now_;
}

void TorchrunPeer::said(const Leave& leave) { leave_ = leave; }

Duration TorchrunPeer::pace() const {
  if (me_ && state().redundancy_list.contains(*me_)) return spare_pace;
  const bool quiet = phase_ == Phase::running || phase_ == Phase::stopping || phase_ == Phase::idle;
  return quiet ? quiet_pace : busy_pace;
}

// ---- one turn

Result<std::vector<CoordinatorMessage>> TorchrunPeer::turn(TorchrunStore& store, TimePoint now, UtcTime utc) {
  now_ = now;
  utc_ = utc;
  if (phase_ == Phase::over) return std::vector<CoordinatorMessage>{};
  const auto runs = phase_ == Phase::running ? std::optional{round_} : std::nullopt;
  Result<> done = board_.read(store, utc, runs);
  if (done) done = step(store);
  if (!done) return done.error();
  return std::exchange(told_, {});
}

Result<> TorchrunPeer::step(TorchrunStore& store) {
  if (leave_) return take_leave(store);
  Result<> done;
  if (phase_ == Phase::leaving) done = leave_round(store);
  if (done && phase_ == Phase::joining) done = join_round(store);
  if (done && phase_ == Phase::meeting) done = meet(store);
  if (done && (phase_ == Phase::running || phase_ == Phase::doubting)) done = watch(store);
  if (done && phase_ == Phase::leaving_together) done = barrier(store);
  if (done && phase_ != Phase::over) done = keep_alive(store);
  return done;
}

Result<> TorchrunPeer::take_leave(TorchrunStore& store) {
  if (auto done = leave_->ends_job ? close(store) : withdraw(store); !done) return done;
  end(verdict_of(*leave_));
  return {};
}

Result<> TorchrunPeer::keep_alive(TorchrunStore& store) {
  if (!me_) return {};
  return board_.write(store, [&](TorchrunState& state) {
    return keep_alive_step(state, board_.terms(), *me_, utc_) == TorchrunStep::write;
  });
}

Result<> TorchrunPeer::close(TorchrunStore& store) {
  return board_.write(store, [](TorchrunState& state) { return !std::exchange(state.closed, true); });
}

Result<> TorchrunPeer::withdraw(TorchrunStore& store) {
  if (!me_) return {};
  return board_.write(store, [&](TorchrunState& state) {
    const TorchrunState before = state;
    remove_node(state, board_.terms(), *me_);
    remove_node(state, board_.terms(), caller_for(*me_));
    return state != before;
  });
}

// ---- into a round

Result<> TorchrunPeer::leave_round(TorchrunStore& store) {
  if (!me_) {
    const bool has_run = state().complete || state().round > 0;
    me_ = our_node(settings_.address, settings_.pid, settings_.number, has_run);
    outsider_.act_for(*me_);
  }
  auto left = board_.write(
      store, [&](TorchrunState& state) { return exit_step(state, board_.terms(), *me_) == TorchrunStep::write; });
  if (left && !state().participants.contains(*me_)) phase_ = Phase::joining;
  return left;
}

Result<> TorchrunPeer::join_round(TorchrunStore& store) {
  if (auto done = outsider_.gather(board_, store, members_, now_, utc_); !done) return done;
  const auto overdue = now_ > join_until_ ? std::optional{now_ - join_until_} : std::nullopt;
  TorchrunStep next = TorchrunStep::wait;
  auto written = board_.write(store, [&](TorchrunState& state) {
    next = join_step(state, board_.terms(), *me_, utc_, overdue);
    return next == TorchrunStep::write;
  });
  if (!written) return written;
  switch (next) {
    case TorchrunStep::write:
      return {};  // others write without end: we go on in the next turn
    case TorchrunStep::wait:
      tell_roster();
      return look_whether_released(store);
    case TorchrunStep::done:
      enter_meeting();
      return outsider_.formed(board_, store, now_);
    case TorchrunStep::closed: {
      if (auto looked = look_whether_released(store); !looked) return looked;
      if (released_) {
        end({.exit_code = 0, .reason = "the job has ended well; this node stood by"});
      } else {
        end({.exit_code = 1, .reason = fmt::format("the rendezvous of job {} is closed", settings_.run_id.value())});
      }
      return {};
    }
    case TorchrunStep::too_late: {
      tell_roster();
      const std::string there = roster_;
      if (auto left = withdraw(store); !left) return left;
      end({.exit_code = exit_code::too_few, .reason = "too few nodes within the join timeout: " + there});
      return {};
    }
  }
  return {};
}

/// Who stands by is released when the others succeed: they meet at the exit barrier, then close the rendezvous, and
/// their store may be gone before we look again. Who comes when all is over has stood by for nobody.
Result<> TorchrunPeer::look_whether_released(TorchrunStore& store) {
  if (roster_.empty() || state().participants.contains(*me_)) return {};
  const char* const sign = state().closed ? torchrun_key::barrier_open : torchrun_key::barrier_count;
  auto leaving = store.find(key(sign, state().round));
  if (!leaving) return leaving.error();
  released_ = leaving->has_value();
  return {};
}

void TorchrunPeer::enter_meeting() {
  round_ = state().round;
  auto nodes = by_group_rank(state());
  if (!nodes) {
    phase_ = Phase::leaving;  // into the next round, which whoever completes it numbers anew
    return;
  }
  phase_ = Phase::meeting;
  const bool lost_one =
      std::ranges::any_of(members_, [this](const auto& node) { return !state().participants.contains(node); });
  if (std::exchange(just_counted_, false) && lost_one) {
    restarts_.give_back();
    ++membership_changes_;
  }
  group_rank_ = static_cast<int>(state().participants.at(*me_));
  members_ = *std::move(nodes);
  meeting_.begin(round_, group_rank_, members_, now_);
  counted_out_ = false;
  change_seen_.reset();
  failed_.reset();
  roster_.clear();
}

Result<> TorchrunPeer::meet(TorchrunStore& store) {
  if (state().closed) return fail_for_good("the rendezvous was closed by another node"), Result<>{};
  if (!goes_on()) {
    phase_ = Phase::leaving;  // no worker of ours has started
    return {};
  }
  auto outcome = meeting_.turn(store, *join_, !outsider_.echoes(now_), now_);
  if (!outcome) return outcome.error();
  if (outcome->failure) {
    if (auto closed = close(store); !closed) return closed;  // without us nobody's workers get anywhere
    return fail_for_good(*std::move(outcome->failure)), Result<>{};
  }
  if (outcome->message) tell(*std::move(outcome->message));
  if (!outcome->placement) return {};
  phase_ = Phase::running;
  Placed placed{*std::move(outcome->placement), false};
  placed.placement.restart_count = restarts_.count();
  placed.placement.membership_changes = membership_changes_;
  tell(std::move(placed));
  return {};
}

// ---- in a round

bool TorchrunPeer::goes_on() const {
  return state().complete && state().round == round_ && state().participants.contains(*me_);
}

bool TorchrunPeer::with_torchruns() const {
  return std::ranges::any_of(state().participants, [](const auto& entry) { return !is_ours(entry.first); });
}

/// Why this round cannot go on, if somebody came or went.
std::optional<std::string> TorchrunPeer::change() const {
  if (!goes_on()) return "the others have left the round";
  std::vector<TorchrunNode> gone;
  for (const TorchrunNode& node : members_) {
    if (!state().participants.contains(node)) gone.push_back(node);
  }
  if (!gone.empty()) return fmt::format("node {} has left the round", shown(gone));
  std::vector<TorchrunNode> newcomers;
  std::ranges::copy_if(state().wait_list, std::back_inserter(newcomers),
                       [](const auto& node) { return !is_caller(node); });
  if (!newcomers.empty()) return "joining: " + shown(newcomers);
  if (!state().wait_list.empty()) return "another round was called for";
  return {};
}

Result<> TorchrunPeer::watch(TorchrunStore& store) {
  if (state().closed) return fail_for_good(closed_by_another), Result<>{};
  auto why = change();
  if (why && phase_ == Phase::running) {
    auto leaving = store.find(key(torchrun_key::barrier_count, round_));
    if (!leaving) return leaving.error();
    if (*leaving) {
      why.reset();
      if (auto dismissed = outsider_.dismiss_caller(board_, store); !dismissed) return dismissed;
    }
  }
  if (!why) change_seen_.reset();
  if (phase_ == Phase::doubting) {
    if (!why) return now_ < *doubt_until_ ? Result<>{} : decide_failure(store);
    ++membership_changes_;
    stop(StopCause::membership_change, *why + "; the failure here is taken for its effect");
    return {};
  }
  if (!why) return {};
  if (!change_seen_) change_seen_ = now_;
  if (auto called = outsider_.call_together(board_, store, utc_); !called) return called;
  if (goes_on() && with_torchruns() && now_ - *change_seen_ < torchrun_notice) return {};
  ++membership_changes_;
  just_counted_ = false;
  stop(StopCause::membership_change, *why);
  return {};
}

Result<> TorchrunPeer::decide_failure(TorchrunStore& store) {
  const JobTerms& terms = join_->terms;
  const std::string cause =
      fmt::format("rank {} failed", failed_->failures[root_cause(failed_->failures)].rank.value());
  if (failed_->may_restart && restarts_.spend(terms, now_)) {
    just_counted_ = true;
    if (auto called = outsider_.call_together(board_, store, utc_); !called) return called;  // while our workers stop
    stop(StopCause::worker_failure,
         fmt::format("{}; restart {} of {} of this node", cause, restarts_.used(terms, now_), terms.max_restarts));
    return {};
  }
  if (auto closed = close(store); !closed) return closed;
  fail_for_good(cause + (terms.max_restarts > 0 ? "; all restarts of this node are used up" : ""));
  return {};
}

Result<> TorchrunPeer::barrier(TorchrunStore& store) {
  if (!std::exchange(counted_out_, true)) {
    auto count = store.add(key(torchrun_key::barrier_count, round_), 1);
    if (!count) return count.error();
    if (*count == static_cast<std::int64_t>(members_.size())) {
      if (auto set = store.set(key(torchrun_key::barrier_open, round_), "<val_ignored>"); !set) return set;
    }
  }
  const bool closed = state().closed;
  auto last = store.find(key(torchrun_key::barrier_open, round_));
  if (!last) return last.error();
  if (*last || now_ - barrier_since_ > barrier_limit) {
    if (auto shut = close(store); !shut) return shut;
    end({.exit_code = 0, .reason = "all workers exited 0"});
  } else if (closed) {
    fail_for_good(closed_by_another);
  }
  return {};
}

// ---- what the agent is told

void TorchrunPeer::stop(StopCause cause, const std::string& reason) {
  phase_ = Phase::stopping;
  tell(StopWorkers{Round{round_}, cause, reason});
}

void TorchrunPeer::fail_for_good(std::string reason) {
  end({.exit_code = 1,
       .reason = std::move(reason),
       .failures = failed_ ? failed_->failures : std::vector<WorkerFailure>{}});
}

void TorchrunPeer::end(Verdict verdict) {
  if (phase_ == Phase::over) return;
  phase_ = Phase::over;
  tell(End{std::move(verdict)});
}

void TorchrunPeer::tell_roster() {
  const TorchrunTerms& terms = board_.terms();
  std::vector<TorchrunNode> here;
  for (const auto& [node, rank] : state().participants) here.push_back(node);
  std::string text = fmt::format("{} of {}", here.size(), terms.min_nodes);
  if (terms.max_nodes != terms.min_nodes) text += fmt::format(" to {}", terms.max_nodes);
  text += " nodes among torchrun's agents";
  if (!here.empty()) text += ": " + shown(here);
  if (state().redundancy_list.contains(*me_))
    text += "; this node is a spare";
  else if (!state().participants.contains(*me_))
    text += "; this node waits for the next round";
  if (text == roster_) return;
  roster_ = text;
  tell(Waiting{std::move(text)});
}

}  // namespace torchup
