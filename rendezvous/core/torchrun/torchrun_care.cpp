#include "rendezvous/core/torchrun/torchrun_care.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace torchup {
namespace {

/// Younger than this a heartbeat of an agent that waits is as good as a new one. Nobody's interval is shorter, and the
/// others bear more than one.
constexpr Duration fresh = torchrun_interval_min;
static_assert(torchrun_attempts_default > 1);

/// Stands on the wait list for nobody. Without a heartbeat it is judged by nobody.
const TorchrunNode caller{"~", 0, -1};

bool has_newcomer(const std::set<TorchrunNode>& list) { return !std::ranges::all_of(list, is_caller); }

}  // namespace

std::optional<TorchrunRoundKey> read_round_key(std::string_view wire_key) {
  if (!wire_key.starts_with(torchrun_keys)) return {};
  const std::string_view rest = wire_key.substr(torchrun_keys.size());
  std::size_t part = 0;  // a run id may hold both characters: the round is the end of any part between two slashes
  for (auto slash = rest.find('/'); slash != std::string_view::npos; slash = rest.find('/', slash + 1)) {
    const auto dot_in_part = rest.substr(part, slash - part).rfind('.');
    const auto dot = std::exchange(part, slash + 1) + dot_in_part;
    if (dot_in_part == std::string_view::npos || dot == 0) continue;
    std::int64_t round = 0;
    const char* const begin = rest.data() + dot + 1;
    const auto [end, error] = std::from_chars(begin, rest.data() + slash, round);
    if (error != std::errc{} || end != rest.data() + slash) continue;
    return TorchrunRoundKey{RunId{std::string{rest.substr(0, dot)}}, round, rest.substr(slash + 1)};
  }
  return {};
}

// ---- what is written

void TorchrunCare::wrote(std::optional<ClientId> client, TorchrunStore& store) {
  const auto text = store.find(torchrun_state_key(settings_.run_id));
  if (text && *text && **text == text_) refused_.reset();
  if (!text || !*text || **text == text_ || **text == torchrun_no_state) return;
  const std::size_t hash = std::hash<std::string_view>{}(**text);
  if (refused_ && refused_->first == hash) return;
  ++read_count_;
  auto state = torchrun_state_in(**text);
  if (!state) {  // `look` says so
    refused_.emplace(hash, state.error());
    return;
  }
  // Who is a member, and when each was heard, is kept by others as well.
  constexpr std::size_t copies = 3;
  if (settings_.room && !settings_.room(copies * held_bytes(*state) + (*text)->size())) {
    let_go_of_state();
    refused_->first = hash;
    return;
  }
  refused_.reset();
  text_ = **text;
  const TorchrunState former = std::exchange(known_, *std::move(state));
  if (client && !agents_.contains(*client)) {
    for (const auto& [node, heartbeat] : known_.last_heartbeats) {
      if (!former.last_heartbeats.contains(node)) agents_.emplace(*client, node);
    }
  }
  find_lost(former, client);
  if (const auto agent = client ? agents_.find(*client) : agents_.end(); agent != agents_.end()) {
    interval_.learn(former, known_, agent->second);
  }
  learn_terms(former);
  if (known_.complete && (!former.complete || former.round != known_.round)) begin_round(store);
  tell_at_once(former);
  const bool round_lasts = known_.complete && !known_.closed && !leaving(store);
  if (known_.wait_list.contains(caller) && !round_lasts) {
    TorchrunState served = known_;
    remove_node(served, terms(), caller);
    (void)rewrite(served, store);
  }
}

void TorchrunCare::let_go_of_state() {
  refused_.emplace(std::hash<std::string_view>{}(text_),
                   fail(errc::limit_exceeded, "there is no room for the state that torchrun's agents share"));
  std::string{}.swap(text_);
  known_ = {};
  members_.clear();
  interval_ = {};
  silence_ = {};
  news_.reset();
  place_ = TorchrunPlace{settings_.run_id, settings_.common_place};
}

void TorchrunCare::find_lost(const TorchrunState& former, std::optional<ClientId> writer) {
  for (const auto& [client, node] : agents_) {
    if (has_node(known_, node)) {
      lost_.erase(node);
    } else if (has_node(former, node) && client != writer) {
      lost_.insert(node);
    }
  }
}

/// The state says neither the minimum nor the length of the last call. But the last call begins with the node that
/// makes the minimum, whose heartbeat is of the same moment; and a round that is full at once has one size only.
void TorchrunCare::learn_terms(const TorchrunState& former) {
  const bool last_call_begins = !known_.complete && known_.deadline && !former.deadline;
  const bool full_at_once = known_.complete && !former.complete && !former.deadline;
  if (last_call_begins || (full_at_once && min_nodes_ == 0)) min_nodes_ = static_cast<int>(known_.participants.size());
  if (known_.deadline == former.deadline) return;
  last_call_until_.reset();
  if (!known_.deadline) return;
  UtcTime begun{};
  for (const auto& [node, rank] : known_.participants) {
    const auto heartbeat = known_.last_heartbeats.find(node);
    if (heartbeat != known_.last_heartbeats.end()) begun = std::max(begun, heartbeat->second);
  }
  last_call_ = std::max<Duration>(*known_.deadline - begun, Duration::zero());
}

TorchrunTerms TorchrunCare::terms() const { return {.min_nodes = std::max(min_nodes_, 1)}; }

void TorchrunCare::tell_at_once(const TorchrunState& former) {
  if (!known_.complete || known_.wait_list.empty()) return news_.reset();
  if (news_ || !former.wait_list.empty()) return;
  News news;
  std::size_t theirs = 0;
  for (const auto& [node, rank] : known_.participants) theirs += is_ours(node) ? 0 : 1;
  for (const auto& [client, node] : agents_) {
    if (known_.participants.contains(node)) news.unaware.insert(client);
  }
  news.strangers = news.unaware.size() < theirs;
  const bool newcomer =
      std::ranges::any_of(known_.wait_list, [&](const TorchrunNode& node) { return !members_.contains(node); });
  news.held = newcomer && news.unaware.size() > 1;
  if (!news.told()) news_ = std::move(news);
}

void TorchrunCare::begin_round(TorchrunStore& store) {
  members_.clear();
  std::vector<TorchrunNode> by_rank(known_.participants.size());
  for (const auto& [node, rank] : known_.participants) {
    members_.insert(node);
    if (rank >= 0 && static_cast<std::size_t>(rank) < by_rank.size()) by_rank[static_cast<std::size_t>(rank)] = node;
  }
  place_.begin(known_.round, by_rank, store);
}

// ---- who is shown what

bool TorchrunCare::holds(ClientId client) {
  const auto agent = agents_.find(client);
  if (!news_ || agent == agents_.end() || !known_.participants.contains(agent->second)) return false;
  news_->unaware.erase(client);
  const bool held = news_->held;
  if (news_->told()) news_.reset();
  return held;
}

std::optional<std::string> TorchrunCare::recall(ClientId client, TorchrunStore& store) const {
  const auto agent = agents_.find(client);
  if (agent == agents_.end() || !lost_.contains(agent->second) || has_node(known_, agent->second)) return {};
  if (!known_.complete || known_.closed || has_newcomer(known_.wait_list) || leaving(store)) return {};
  TorchrunState shown_state = known_;
  shown_state.wait_list.insert(caller);
  return to_base64(write_torchrun_state(shown_state));
}

bool TorchrunCare::outsider(ClientId client, TorchrunStore& store) const {
  const auto agent = agents_.find(client);
  return agent != agents_.end() && !known_.participants.empty() && !has_node(known_, agent->second) &&
         !(known_.complete && leaving(store));  // the others have dropped it while it waited in the exit barrier
}

bool TorchrunCare::idles(ClientId client) const {
  const auto agent = agents_.find(client);
  if (agent == agents_.end() || known_.closed) return false;
  if (known_.complete) return known_.wait_list.contains(agent->second);
  return known_.round > 0 && known_.participants.contains(agent->second);
}

// ---- another round

bool TorchrunCare::leaving(TorchrunStore& store) const {
  const auto counted = store.find(torchrun_round_key(settings_.run_id, known_.round, torchrun_key::barrier_count));
  return !counted || *counted;
}

std::vector<TorchrunNode> TorchrunCare::lost_members(const TorchrunState& state) const {
  std::vector<TorchrunNode> list;
  for (const TorchrunNode& node : members_) {
    if (!state.participants.contains(node)) list.push_back(node);
  }
  return list;
}

bool TorchrunCare::may_call(const TorchrunState& state, TorchrunStore& store) const {
  if (!state.complete || state.closed || !state.wait_list.empty()) return false;
  const bool with_ours =
      std::ranges::any_of(ours_, [&](const auto& one) { return state.participants.contains(one.first); });
  return (with_ours || static_cast<int>(state.participants.size()) >= min_nodes_) && !leaving(store);
}

/// The one decision that the others are called to another round.
void TorchrunCare::call_together(TorchrunStore& store, TimePoint now) {
  if (!may_call(known_, store)) return lost_since_.reset();
  if (call_for_ours(store)) return;
  const auto lost = lost_members(known_);
  if (lost.empty()) return lost_since_.reset();
  if (!lost_since_) lost_since_ = now;
  if (now - *lost_since_ < torchrun_passage) return;
  call(store, "node " + shown(lost) + " is lost");
}

void TorchrunCare::call(TorchrunStore& store, const std::string& why) {
  notes_.push_back(why + ": the others are called together for another round");
  lost_since_.reset();
  TorchrunState state = known_;
  state.wait_list.insert(caller);
  (void)rewrite(state, store);
}

/// Nobody who is known is still on the way.
bool TorchrunCare::all_have_come() const {
  const auto here = [&](const TorchrunNode& node) { return known_.participants.contains(node); };
  return !has_newcomer(known_.wait_list) && !has_newcomer(known_.redundancy_list) &&
         std::ranges::all_of(ours_, [&](const auto& one) { return here(one.first); }) &&
         std::ranges::all_of(agents_, [&](const auto& one) { return here(one.second) || lost_.contains(one.second); });
}

/// The one decision that a round is complete: of a later one; of the first one, where ours take part in it, but for the
/// torchrun agent that finds its last call over before us.
void TorchrunCare::complete_again(TorchrunStore& store, TimePoint now) {
  if (!known_.deadline) last_call_until_.reset();
  if (known_.deadline && !last_call_until_) last_call_until_ = now + last_call_;
  if (known_.complete || known_.closed || (known_.round == 0 && ours_.empty())) return;
  if (min_nodes_ == 0 || static_cast<int>(known_.participants.size()) < min_nodes_) return;
  const bool over = last_call_until_ && now >= *last_call_until_;
  if (!over && (known_.round == 0 || !all_have_come())) return;
  TorchrunState state = known_;
  complete_round(state);
  (void)rewrite(state, store);
}

void TorchrunCare::gone(ClientId client, TorchrunStore& store) {
  const auto agent = agents_.extract(client);
  if (agent) lost_.erase(agent.mapped());
  if (news_ && news_->unaware.erase(client) > 0 && news_->told()) news_.reset();
  if (!agent || known_.closed || !has_node(known_, agent.mapped())) return;
  notes_.push_back("node " + agent.mapped().addr + ": torchrun's agent has ended");
  (void)take_out({agent.mapped()}, store);
}

Result<> TorchrunCare::take_out(const std::vector<TorchrunNode>& nodes, TorchrunStore& store) {
  TorchrunState state = known_;
  for (const TorchrunNode& node : nodes) remove_node(state, terms(), node);
  if (may_call(state, store) && !lost_members(state).empty()) state.wait_list.insert(caller);
  return rewrite(state, store);
}

/// The one decision that somebody is gone who does not say so.
void TorchrunCare::drop_silent(TorchrunStore& store, TimePoint now) {
  // In the exit barrier nobody sends heartbeats any more.
  if (ours_.empty() || known_.closed || (known_.complete && leaving(store))) return silence_.forget();
  std::vector<TorchrunNode> silent = silence_.look(known_, interval_.dead_after(lease_), now);
  std::erase_if(silent, [&](const TorchrunNode& node) { return ours_.contains(node); });
  if (silent.empty()) return;
  for (const TorchrunNode& node : silent) notes_.push_back("node " + shown(node) + " is silent: taken out of the job");
  (void)take_out(silent, store);
}

void TorchrunCare::turn(TorchrunStore& store, const std::function<bool(ClientId)>& waits, TimePoint now, UtcTime utc) {
  if (news_ && now - news_->since.value_or(now) >= torchrun_notice) news_.reset();
  if (news_ && !news_->since) news_->since = now;
  place_.turn(store);
  drop_silent(store, now);
  call_together(store, now);
  complete_again(store, now);
  keep_waiting_alive(store, waits, utc);
}

void TorchrunCare::keep_waiting_alive(TorchrunStore& store, const std::function<bool(ClientId)>& waits, UtcTime utc) {
  if (known_.closed || (known_.complete && leaving(store))) return;  // in the exit barrier nobody waits for heartbeats
  std::vector<TorchrunNode> due;
  for (const auto& [client, node] : agents_) {
    const auto heartbeat = known_.last_heartbeats.find(node);
    if (heartbeat == known_.last_heartbeats.end()) continue;
    // One that lies in the future is of a clock that was set back since.
    const Duration age = utc - heartbeat->second;
    const bool aged = age >= fresh || age <= -fresh;
    if (aged && waits(client)) due.push_back(node);  // to look for who waits takes longer
  }
  if (due.empty()) return;
  TorchrunState state = known_;
  for (const TorchrunNode& node : due) state.last_heartbeats[node] = utc;
  (void)rewrite(state, store);
}

// ---- what people see

std::vector<std::string> TorchrunCare::notes() {
  std::vector<std::string> all = std::exchange(notes_, {});
  for (std::string& note : place_.notes()) all.push_back(std::move(note));
  return all;
}

JobView TorchrunCare::view(JobView known, const std::map<TorchrunNode, JobView::Node>& ours) const {
  const auto row_of = [&](const TorchrunNode& node, std::string state) {
    const auto own = ours.find(node);
    JobView::Node row = own == ours.end() ? JobView::Node{} : own->second;
    row.host = shown(node);
    row.state = std::move(state);
    row.torchruns = !is_ours(node);
    return row;
  };
  known.phase = known_.closed ? "ended" : known_.complete ? "running" : "gathering";
  known.round = Round{known_.round};
  // What is known of our members says nothing of torchrun's rendezvous.
  known.waits_for.clear();
  if (!known_.closed && !known_.complete) {
    known.waits_for =
        fmt::format("the end of torchrun's rendezvous, with {} of its nodes there", known_.participants.size());
  }
  known.nodes.clear();
  for (const auto& [node, rank] : known_.participants) {
    JobView::Node row = row_of(node, known_.complete ? "seated" : "ready");
    if (known_.complete) row.group_rank = GroupRank{static_cast<int>(rank)};
    known.nodes.push_back(std::move(row));
  }
  for (const auto* list : {&known_.wait_list, &known_.redundancy_list}) {
    for (const TorchrunNode& node : *list) {
      if (is_caller(node)) continue;
      known.nodes.push_back(row_of(node, "ready"));
      if (known_.complete) known.nodes.back().first_rank.reset();  // others have its ranks
    }
  }
  std::ranges::stable_sort(known.nodes, {}, &JobView::Node::host);
  return known;
}

/// Nobody else can have written since: the store is this process's own.
Result<> TorchrunCare::rewrite(const TorchrunState& state, TorchrunStore& store) {
  const std::string text = to_base64(write_torchrun_state(state));
  auto held = store.compare_set(torchrun_state_key(settings_.run_id), text_, text);
  if (!held) return held.error();
  return look(store);
}

}  // namespace torchup
