#include "rendezvous/core/torchrun_peer.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "rendezvous/core/endpoint.hpp"
#include "rendezvous/core/wording.hpp"

namespace torchup {
namespace {

constexpr Duration busy_pace = std::chrono::milliseconds{100};
constexpr Duration quiet_pace = std::chrono::milliseconds{250};
/// Torchrun's, where its agents are told nothing else.
constexpr Duration interval_default = std::chrono::seconds{5};
constexpr Duration interval_min = std::chrono::seconds{1};
constexpr int attempts_default = 3;
/// Torchrun's agents look once a second: who stops before they saw a change makes their workers fail, which they count.
constexpr Duration notice = std::chrono::milliseconds{1200};
/// How long after a worker's failure another node's change may still show up as its cause: torchrun's agents look at
/// their workers each 100 ms, and stop them before they leave.
constexpr Duration doubt = std::chrono::milliseconds{400};
/// A group rank 0 that has published nothing for so long never will: it believes that all know its store.
constexpr Duration silence_of_first = std::chrono::milliseconds{2500};
constexpr Duration call_pace = std::chrono::seconds{1};
constexpr Duration absence = std::chrono::seconds{3};
constexpr Duration meeting_limit = std::chrono::seconds{60};   // torchrun's read timeout
constexpr Duration barrier_limit = std::chrono::seconds{300};  // torchrun's
constexpr std::int64_t rounds_looked_back = 64;
constexpr int lost_writes_max = 64;  // per turn
constexpr std::string_view terminal = "torchelastic/agent/terminal_state/";

std::string names(const auto& nodes) {
  std::vector<std::string> list;
  for (const TorchrunNode& node : nodes) list.push_back(shown(node));
  return join_names(list);
}

struct Role {
  std::string name;
  int local_world_size = 0;
};

std::optional<Role> read_role(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return {};
  const auto role = json.find("role");
  const auto size = json.find("local_world_size");
  if (role == json.end() || size == json.end() || !role->is_string() || !size->is_number_integer()) return {};
  return Role{*role, *size};
}

std::optional<std::array<int, 4>> read_ranks(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_array() || json.size() != 4) return {};
  std::array<int, 4> ranks{};
  for (std::size_t i = 0; i < 4; ++i) {
    if (!json[i].is_number_integer()) return {};
    ranks[i] = json[i];
  }
  return ranks;
}

}  // namespace

bool is_ours(const TorchrunNode& node) { return node.addr.starts_with('!') || node.addr.starts_with('~'); }

std::string shown(const TorchrunNode& node) { return is_ours(node) ? node.addr.substr(1) : node.addr; }

TorchrunPeer::TorchrunPeer(Settings settings) : settings_{std::move(settings)} {
  me_ = {settings_.address, settings_.pid, settings_.local_id};
}

void TorchrunPeer::said(const AgentMessage& message, TimePoint now) {
  if (phase_ == Phase::over) return;
  if (const auto* join = std::get_if<Join>(&message)) {
    join_ = *join;
    terms_ = {.min_nodes = join->terms.min_nodes,
              .max_nodes = join->terms.max_nodes,
              .last_call = join->terms.last_call,
              .keep_alive_interval = std::min(join->terms.lease / 3, interval_default)};
    join_until_ = now + join->terms.join_timeout;
    phase_ = Phase::leaving;
  } else if (const auto* failed = std::get_if<WorkersFailed>(&message)) {
    if (phase_ != Phase::running || failed->round.value() != round_) return;
    failed_ = *failed;
    phase_ = Phase::doubting;
    doubt_until_ = now + (members_.size() > 1 ? doubt : Duration::zero());
  } else if (const auto* succeeded = std::get_if<WorkersSucceeded>(&message)) {
    if (phase_ != Phase::running || succeeded->round.value() != round_) return;
    phase_ = Phase::leaving_together;
    barrier_since_ = now;
  } else if (const auto* leave = std::get_if<Leave>(&message)) {
    leave_ = *leave;
  }
}

Duration TorchrunPeer::pace() const {
  return phase_ == Phase::running || phase_ == Phase::idle ? quiet_pace : busy_pace;
}

Result<std::vector<CoordinatorMessage>> TorchrunPeer::turn(TorchrunStore& store, TimePoint now, UtcTime utc) {
  now_ = now;
  utc_ = utc;
  if (phase_ == Phase::over) return std::vector<CoordinatorMessage>{};
  Result<> done = look(store);
  if (done && leave_) {
    done = leave_->ends_job ? close(store) : withdraw(store);
    const Leave& word = *leave_;
    end({word.exit_code, word.reason, word.failures, word.stop_signal, word.kill_now});
  }
  if (done && phase_ == Phase::leaving) done = leave_round(store);
  if (done && phase_ == Phase::joining) done = join_round(store);
  if (done && phase_ == Phase::meeting) done = meet(store);
  if (done && (phase_ == Phase::running || phase_ == Phase::doubting)) done = watch(store);
  if (done && phase_ == Phase::leaving_together) done = barrier(store);
  if (done && phase_ != Phase::over) done = keep_alive(store);
  if (!done) return done.error();
  return std::exchange(told_, {});
}

// ---- the shared state

Result<> TorchrunPeer::look(TorchrunStore& store) {
  const std::string main_key = "torch.rendezvous." + settings_.run_id.value();
  auto found = store.find(main_key);
  if (!found) return found.error();
  if (*found) {
    token_ = **std::move(found);
  } else {
    auto made = store.compare_set(main_key, "", std::string{torchrun_no_state});
    if (!made) return made.error();
    token_ = *std::move(made);
  }
  state_ = {};
  if (token_ == torchrun_no_state) return {};
  auto bytes = from_base64(token_);
  if (!bytes) return bytes.error();
  auto state = read_torchrun_state(*bytes);
  if (!state) return state.error();
  state_ = *std::move(state);
  learn_interval();
  drop_silent(state_, terms_, utc_);
  return {};
}

/// Whom torchrun's agents take for dead they do not say. Not to be quicker than they, we go by their defaults until
/// their interval shows: in a round that runs each of them keeps to it, and nothing else writes a heartbeat.
void TorchrunPeer::learn_interval() {
  if (phase_ == Phase::running && goes_on()) {
    for (const auto& [node, heartbeat] : state_.last_heartbeats) {
      const auto before = heartbeats_.find(node);
      if (before == heartbeats_.end() || is_ours(node) || !state_.participants.contains(node)) continue;
      const Duration gap = heartbeat - before->second;
      if (gap >= interval_min) interval_ = std::min(gap, interval_.value_or(gap));
    }
    heartbeats_ = state_.last_heartbeats;
  } else {
    heartbeats_.clear();
  }
  const Duration lease = join_ ? join_->terms.lease : Duration::zero();
  terms_.dead_after = std::max(lease, interval_.value_or(interval_default) * attempts_default);
}

/// Writes the state that we changed. False: somebody was faster, and theirs is ours now.
Result<bool> TorchrunPeer::put(TorchrunStore& store) {
  const std::string text = to_base64(write_torchrun_state(state_));
  auto held = store.compare_set("torch.rendezvous." + settings_.run_id.value(), token_, text);
  if (!held) return held.error();
  if (*held == text) {
    token_ = text;
    return true;
  }
  if (auto looked = look(store); !looked) return looked.error();
  return false;
}

Result<> TorchrunPeer::keep_alive(TorchrunStore& store) {
  for (int i = 0; i < lost_writes_max && keep_alive_step(state_, terms_, me_, utc_) == TorchrunStep::write; ++i) {
    auto stored = put(store);
    if (!stored) return stored.error();
    if (*stored) break;
  }
  return {};
}

Result<> TorchrunPeer::close(TorchrunStore& store) {
  for (int i = 0; i < lost_writes_max && !state_.closed; ++i) {
    state_.closed = true;
    if (auto stored = put(store); !stored) return stored.error();
  }
  return {};
}

Result<> TorchrunPeer::withdraw(TorchrunStore& store) {
  for (int i = 0; i < lost_writes_max; ++i) {
    const TorchrunState before = state_;
    remove_node(state_, terms_, me_);
    remove_node(state_, terms_, caller_);
    if (state_ == before) break;
    auto stored = put(store);
    if (!stored) return stored.error();
    if (*stored) break;
  }
  return {};
}

// ---- into a round

Result<> TorchrunPeer::leave_round(TorchrunStore& store) {
  for (int i = 0; i < lost_writes_max; ++i) {
    if (exit_step(state_, terms_, me_) == TorchrunStep::done) {
      phase_ = Phase::joining;
      return {};
    }
    auto stored = put(store);
    if (!stored) return stored.error();
  }
  return {};
}

Result<> TorchrunPeer::join_round(TorchrunStore& store) {
  if (!named_) {
    named_ = true;
    const bool goes_on = state_.complete || state_.round > 0;
    me_.addr = (goes_on ? "~" : "!") + settings_.address;
    caller_ = {"~" + settings_.address, settings_.pid, -1 - settings_.local_id};
  }
  if (!state_.complete && !absent_since_) {  // all have left the last round: it would call for a second one
    if (auto dismissed = dismiss_caller(store); !dismissed) return dismissed;
  }
  if (auto called = call_back(store); !called) return called;
  if (auto cut = cut_last_call(store); !cut) return cut;
  for (int i = 0; i < lost_writes_max; ++i) {
    const auto overdue = now_ > join_until_ ? std::optional{now_ - join_until_} : std::nullopt;
    switch (join_step(state_, terms_, me_, utc_, overdue)) {
      case TorchrunStep::write:
        if (auto stored = put(store); !stored) return stored.error();
        break;
      case TorchrunStep::wait:
        tell_roster();
        return {};
      case TorchrunStep::done:
        enter_meeting();
        return hush(store);
      case TorchrunStep::closed:
        end({.exit_code = 1, .reason = "the rendezvous of job " + settings_.run_id.value() + " is closed"});
        return {};
      case TorchrunStep::too_late: {
        tell_roster();
        const std::string there = roster_;
        if (auto left = withdraw(store); !left) return left;
        end({.exit_code = 66, .reason = "too few nodes within the join timeout: " + there});
        return {};
      }
    }
  }
  return {};
}

Result<> TorchrunPeer::cut_last_call(TorchrunStore& store) {
  const std::size_t here = state_.participants.size();
  const bool all_here = !state_.complete && !state_.closed && state_.round > 0 && state_.deadline &&
                        state_.participants.contains(me_) && state_.wait_list.empty() && state_.redundancy_list.empty();
  if (!all_here || std::exchange(here_, here) != here) all_here_since_.reset();
  if (!all_here) return {};
  if (!all_here_since_) all_here_since_ = now_;
  if (now_ - *all_here_since_ < torchrun_passage) return {};
  complete_round(state_);
  auto stored = put(store);  // where somebody was faster the next turn looks again
  return stored ? Result<>{} : stored.error();
}

/// Members of our last round that are nowhere in the state may live, and still be in that round.
Result<> TorchrunPeer::call_back(TorchrunStore& store) {
  const auto absent = std::ranges::find_if(members_, [this](const TorchrunNode& node) {
    return node != me_ && !state_.participants.contains(node) && !state_.wait_list.contains(node) &&
           !state_.redundancy_list.contains(node);
  });
  if (absent == members_.end() || state_.complete) {
    absent_since_.reset();
    return {};
  }
  if (!absent_since_) absent_since_ = now_;
  if (now_ - *absent_since_ < absence) return {};  // it may be on its way from one list to the other
  for (int i = 0; i < lost_writes_max; ++i) {
    const auto called = state_.last_heartbeats.find(caller_);
    if (state_.wait_list.contains(caller_) && called != state_.last_heartbeats.end() &&
        utc_ - called->second < call_pace)
      break;
    state_.wait_list.insert(caller_);
    state_.last_heartbeats[caller_] = utc_;
    auto stored = put(store);
    if (!stored) return stored.error();
    if (*stored) break;
  }
  return {};
}

/// Torchrun's agents look at the wait list again when they have all roles.
Result<> TorchrunPeer::hush(TorchrunStore& store) {
  if (state_.wait_list.contains(caller_)) quiet_from_ = now_ + notice;
  return dismiss_caller(store);
}

Result<> TorchrunPeer::dismiss_caller(TorchrunStore& store) {
  for (int i = 0; i < lost_writes_max && state_.wait_list.contains(caller_); ++i) {
    remove_node(state_, terms_, caller_);
    if (auto stored = put(store); !stored) return stored.error();
  }
  return {};
}

void TorchrunPeer::enter_meeting() {
  phase_ = Phase::meeting;
  round_ = state_.round;
  const bool lost_one =
      std::ranges::any_of(members_, [this](const auto& node) { return !state_.participants.contains(node); });
  if (std::exchange(just_counted_, false) && lost_one) {
    --restart_count_;
    ++membership_changes_;
  }
  members_.clear();
  for (const auto& [node, rank] : state_.participants) members_.push_back(node);
  group_rank_ = static_cast<int>(state_.participants.at(me_));
  met_at_ = now_;
  role_told_ = counted_out_ = false;
  workers_.reset();
  change_seen_.reset();
  failed_.reset();
  roster_.clear();
}

std::string TorchrunPeer::key(const std::string& name, std::int64_t round) const {
  return "torch.rendezvous." + settings_.run_id.value() + "." + std::to_string(round) + "/" + name;
}

Result<> TorchrunPeer::meet(TorchrunStore& store) {
  if (state_.closed) return fail_for_good("the rendezvous was closed by another node"), Result<>{};
  if (!state_.complete || state_.round != round_ || !state_.participants.contains(me_)) {
    phase_ = Phase::leaving;  // no worker of ours has started
    return {};
  }
  if (now_ - met_at_ > meeting_limit) {
    const std::string missing =
        workers_ ? "the roles of all nodes" : "the workers' store of " + shown(members_.front());
    return fail_for_good("round " + std::to_string(round_) + " waited 60 s for " + missing), Result<>{};
  }
  if (!workers_) {
    if (auto met = group_rank_ == 0 ? meet_as_first(store) : find_worker_store(store); !met) return met;
  }
  return workers_ ? take_place(store) : Result<>{};
}

Result<> TorchrunPeer::meet_as_first(TorchrunStore& store) {
  auto workers = store.worker_store();
  if (!workers) return workers.error();
  workers_ = *std::move(workers);
  if (auto set = store.set(key("MASTER_ADDR"), workers_->address); !set) return set;
  return store.set(key("MASTER_PORT"), std::to_string(workers_->port.value()));
}

Result<> TorchrunPeer::find_worker_store(TorchrunStore& store) {
  const auto published = [&](std::int64_t round) -> Result<std::optional<WorkerStore>> {
    auto address = store.find(key("MASTER_ADDR", round));
    if (!address) return address.error();
    auto port = store.find(key("MASTER_PORT", round));
    if (!port) return port.error();
    if (!*address || !*port) return std::optional<WorkerStore>{};
    const auto number = read_port(**port);
    if (!number) return fail(errc::bad_frame, "the port of the workers' store cannot be read: " + **port);
    return std::optional{WorkerStore{**address, *number}};
  };
  auto now_there = published(round_);
  if (!now_there) return now_there.error();
  if (*now_there) {
    workers_ = **now_there;
    return {};
  }
  if (now_ - met_at_ < silence_of_first) return {};
  std::optional<WorkerStore> known;
  if (former_first_ == members_.front()) known = former_workers_;
  for (std::int64_t back = round_ - 1; !known && back >= 0 && back >= round_ - rounds_looked_back; --back) {
    auto then = published(back);
    if (!then) return then.error();
    if (!*then) continue;
    if ((*then)->address != members_.front().addr) return {};  // a new rank 0, which is about to publish its own
    known = **then;
  }
  if (!known) return {};
  // Whatever stands there in the end is read in the next turn.
  if (auto address = store.compare_set(key("MASTER_ADDR"), "", known->address); !address) return address.error();
  if (auto port = store.compare_set(key("MASTER_PORT"), "", std::to_string(known->port.value())); !port)
    return port.error();
  return {};
}

Result<> TorchrunPeer::take_place(TorchrunStore& store) {
  const std::string roles = "torchelastic/role_info/";
  const std::string places = "torchelastic/assigned_ranks/";
  if (!role_told_) {
    if (now_ < quiet_from_) return {};
    // No worker of this round starts before all roles are told, and those of the last have ended: what they left goes.
    if (round_ > 0) store.empty_worker_store(*workers_);
    const nlohmann::ordered_json mine{
        {"role", join_->role}, {"rank", group_rank_}, {"local_world_size", join_->local_world_size}};
    if (auto set = store.set(key(roles + std::to_string(group_rank_)), mine.dump()); !set) return set;
    role_told_ = true;
  }
  if (group_rank_ == 0) {
    std::vector<Role> all;
    int world_size = 0;
    std::map<std::string, int> role_sizes;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      auto text = store.find(key(roles + std::to_string(i)));
      if (!text) return text.error();
      if (!*text) return {};
      auto role = read_role(**text);
      if (!role) return fail(errc::bad_frame, "the role of node " + shown(members_[i]) + " cannot be read: " + **text);
      world_size += role->local_world_size;
      role_sizes[role->name] += role->local_world_size;
      all.push_back(*std::move(role));
    }
    int first_rank = 0;
    std::map<std::string, int> first_role_ranks;
    for (std::size_t i = 0; i < all.size(); ++i) {
      int& first_role_rank = first_role_ranks[all[i].name];
      const nlohmann::json ranks{first_rank, world_size, first_role_rank, role_sizes[all[i].name]};
      if (auto set = store.set(key(places + std::to_string(i)), ranks.dump()); !set) return set;
      first_rank += all[i].local_world_size;
      first_role_rank += all[i].local_world_size;
    }
  }
  auto text = store.find(key(places + std::to_string(group_rank_)));
  if (!text) return text.error();
  if (!*text) return {};
  const auto ranks = read_ranks(**text);
  if (!ranks) return fail(errc::bad_frame, "the ranks that group rank 0 gave us cannot be read: " + **text);
  former_workers_ = workers_;
  former_first_ = members_.front();
  phase_ = Phase::running;
  tell(Placed{{.round = Round{round_},
               .group_rank = GroupRank{group_rank_},
               .group_world_size = static_cast<int>(members_.size()),
               .first_rank = Rank{(*ranks)[0]},
               .world_size = (*ranks)[1],
               .first_role_rank = Rank{(*ranks)[2]},
               .role_world_size = (*ranks)[3],
               .master_addr = workers_->address,
               .master_port = workers_->port,
               .restart_count = restart_count_,
               .membership_changes = membership_changes_}});
  return {};
}

// ---- in a round

bool TorchrunPeer::goes_on() const {
  return state_.complete && state_.round == round_ && state_.participants.contains(me_);
}

bool TorchrunPeer::with_torchruns() const {
  return std::ranges::any_of(state_.participants, [](const auto& entry) { return !is_ours(entry.first); });
}

/// Why this round cannot go on, if somebody came or went.
std::optional<std::string> TorchrunPeer::change() const {
  if (!goes_on()) return "the others have left the round";
  std::vector<TorchrunNode> gone;
  for (const TorchrunNode& node : members_) {
    if (!state_.participants.contains(node)) gone.push_back(node);
  }
  if (!gone.empty()) return "node " + names(gone) + " has left the round";
  std::vector<TorchrunNode> newcomers;
  std::ranges::copy_if(state_.wait_list, std::back_inserter(newcomers),
                       [](const auto& node) { return node.local_id >= 0; });
  if (!newcomers.empty()) return "joining: " + names(newcomers);
  if (!state_.wait_list.empty()) return "another round was called for";
  return {};
}

/// Torchrun's agents do not see who is missing, only that somebody waits.
Result<> TorchrunPeer::call_together(TorchrunStore& store) {
  for (int i = 0; i < lost_writes_max && goes_on() && state_.wait_list.empty() && with_torchruns(); ++i) {
    state_.wait_list.insert(caller_);
    state_.last_heartbeats[caller_] = utc_;
    if (auto stored = put(store); !stored) return stored.error();
  }
  return {};
}

Result<> TorchrunPeer::watch(TorchrunStore& store) {
  if (state_.closed) {
    fail_for_good("the rendezvous was closed by another node, whose workers have failed");
    return {};
  }
  auto why = change();
  if (why && phase_ == Phase::running) {
    // An agent at the exit barrier sends no heartbeats, and does not come back for another round.
    auto leaving = store.find(key(std::string{terminal} + "num_members"));
    if (!leaving) return leaving.error();
    if (*leaving) {
      why.reset();
      if (auto dismissed = dismiss_caller(store); !dismissed) return dismissed;
    }
  }
  if (!why) change_seen_.reset();
  if (why && phase_ == Phase::running) {
    if (!change_seen_) change_seen_ = now_;
    if (auto called = call_together(store); !called) return called;
    if (goes_on() && with_torchruns() && now_ - *change_seen_ < notice) return {};
    ++membership_changes_;
    just_counted_ = false;
    stop(StopCause::membership_change, *why);
    return {};
  }
  if (phase_ != Phase::doubting) return {};
  if (why) {
    ++membership_changes_;
    stop(StopCause::membership_change, *why + "; the failure here is taken for its effect");
    return {};
  }
  if (now_ < *doubt_until_) return {};
  const std::string cause = "rank " + std::to_string(failed_->failures.front().rank.value()) + " failed";
  if (failed_->may_restart && restart_count_ < join_->terms.max_restarts) {
    ++restart_count_;
    just_counted_ = true;
    if (auto called = call_together(store); !called) return called;  // while our workers stop
    stop(StopCause::worker_failure, cause + "; restart " + std::to_string(restart_count_) + " of " +
                                        std::to_string(join_->terms.max_restarts) + " of this node");
    return {};
  }
  if (auto closed = close(store); !closed) return closed;
  fail_for_good(cause + (join_->terms.max_restarts > 0 ? "; all restarts of this node are used up" : ""));
  return {};
}

Result<> TorchrunPeer::barrier(TorchrunStore& store) {
  if (!std::exchange(counted_out_, true)) {
    auto count = store.add(key(std::string{terminal} + "num_members"), 1);
    if (!count) return count.error();
    if (*count == static_cast<std::int64_t>(members_.size())) {
      if (auto set = store.set(key(std::string{terminal} + "last_member"), "<val_ignored>"); !set) return set;
    }
  }
  const bool closed = state_.closed;
  auto last = store.find(key(std::string{terminal} + "last_member"));
  if (!last) return last.error();
  if (*last || now_ - barrier_since_ > barrier_limit) {
    if (auto shut = close(store); !shut) return shut;
    end({.exit_code = 0, .reason = "all workers exited 0"});
  } else if (closed) {
    fail_for_good("the rendezvous was closed by another node, whose workers have failed");
  }
  return {};
}

void TorchrunPeer::stop(StopCause cause, const std::string& reason) {
  phase_ = Phase::idle;
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
  std::vector<TorchrunNode> here;
  for (const auto& [node, rank] : state_.participants) here.push_back(node);
  const bool waits = !state_.participants.contains(me_);
  std::string text = std::to_string(here.size()) + " of " + std::to_string(terms_.min_nodes) +
                     (terms_.max_nodes == terms_.min_nodes ? "" : " to " + std::to_string(terms_.max_nodes)) +
                     " nodes among torchrun's agents";
  if (!here.empty()) text += ": " + names(here);
  if (waits)
    text += state_.redundancy_list.contains(me_) ? "; this node is a spare" : "; this node waits for the next round";
  if (text == roster_) return;
  roster_ = text;
  tell(Waiting{std::move(text)});
}

}  // namespace torchup
