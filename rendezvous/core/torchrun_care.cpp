#include "rendezvous/core/torchrun_care.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "rendezvous/core/endpoint.hpp"
#include "rendezvous/core/wording.hpp"

namespace torchup {
namespace {

/// Younger than this a heartbeat of an agent that waits is as good as a new one: torchrun's shortest lease is 3 s.
constexpr Duration fresh = std::chrono::seconds{1};

/// A little less than our own agents let torchrun's have: core/torchrun_peer stops workers 1.2 s after a newcomer came.
constexpr Duration hold_limit = std::chrono::seconds{1};

/// Stands on the wait list for nobody. Without a heartbeat it is judged by nobody.
const TorchrunNode caller{"~", 0, -1};

constexpr std::string_view address_name = "MASTER_ADDR";
constexpr std::string_view port_name = "MASTER_PORT";

bool has(const TorchrunState& state, const TorchrunNode& node) {
  return state.participants.contains(node) || state.wait_list.contains(node) || state.redundancy_list.contains(node);
}

}  // namespace

std::optional<TorchrunRoundKey> read_round_key(std::string_view wire_key) {
  if (!wire_key.starts_with(torchrun_keys)) return {};
  const std::string_view rest = wire_key.substr(torchrun_keys.size());
  for (auto slash = rest.find('/'); slash != std::string_view::npos; slash = rest.find('/', slash + 1)) {
    const auto dot = rest.rfind('.', slash);  // a run id may hold both characters
    if (dot == std::string_view::npos || dot == 0) continue;
    std::int64_t round = 0;
    const char* const begin = rest.data() + dot + 1;
    const auto [end, error] = std::from_chars(begin, rest.data() + slash, round);
    if (error != std::errc{} || end != rest.data() + slash) continue;
    return TorchrunRoundKey{RunId{std::string{rest.substr(0, dot)}}, round, rest.substr(slash + 1)};
  }
  return {};
}

void TorchrunCare::wrote(std::optional<ClientId> client, TorchrunStore& store) {
  const auto text = store.find(main_key());
  if (!text || !*text || **text == text_ || **text == torchrun_no_state) return;
  const auto bytes = from_base64(**text);
  auto state = bytes ? read_torchrun_state(*bytes) : Result<TorchrunState>{bytes.error()};
  if (!state) return;  // whoever reads it next says so
  text_ = **text;
  const TorchrunState former = std::exchange(known_, *std::move(state));
  if (client && !agents_.contains(*client)) {
    for (const auto& [node, heartbeat] : known_.last_heartbeats) {
      if (!former.last_heartbeats.contains(node)) agents_.emplace(*client, node);
    }
  }
  find_lost(former, client);
  learn_minimum(former);
  if (known_.complete && (!former.complete || former.round != known_.round)) begin_round(store);
  tell_at_once(former);
  const bool round_lasts = known_.complete && !known_.closed && !leaving(store);
  if (known_.wait_list.contains(caller) && !round_lasts) {
    TorchrunState served = known_;
    remove_node(served, {}, caller);
    rewrite(served, store);
  }
}

void TorchrunCare::find_lost(const TorchrunState& former, std::optional<ClientId> writer) {
  for (const auto& [client, node] : agents_) {
    if (has(known_, node)) {
      lost_.erase(node);
    } else if (has(former, node) && client != writer) {
      lost_.insert(node);
    }
  }
}

/// The state does not say it; but the last call begins with the node that makes it.
void TorchrunCare::learn_minimum(const TorchrunState& former) {
  const bool last_call = !known_.complete && known_.deadline && !former.deadline;
  const bool full_at_once = known_.complete && !former.complete && !former.deadline;
  if (last_call || full_at_once) min_nodes_ = known_.participants.size();
}

bool TorchrunCare::leaving(TorchrunStore& store) const {
  const auto counted =
      store.find(main_key() + "." + std::to_string(known_.round) + "/torchelastic/agent/terminal_state/num_members");
  return !counted || *counted;
}

bool TorchrunCare::calls_for_another(const TorchrunState& state, TorchrunStore& store) const {
  if (!state.complete || state.closed || !state.wait_list.empty() || state.participants.size() < min_nodes_)
    return false;
  return !leaving(store) &&
         std::ranges::any_of(members_, [&](const TorchrunNode& node) { return !state.participants.contains(node); });
}

void TorchrunCare::call_together(TorchrunStore& store, UtcTime now) {
  if (!calls_for_another(known_, store)) return lost_since_.reset();
  if (!lost_since_) lost_since_ = now;
  if (now - *lost_since_ < torchrun_passage) return;
  std::vector<std::string> lost;
  for (const TorchrunNode& node : members_) {
    if (!known_.participants.contains(node)) lost.push_back(shown(node));
  }
  notes_.push_back("node " + join_names(lost) + " is lost: the others are called together for another round");
  TorchrunState state = known_;
  state.wait_list.insert(caller);
  rewrite(state, store);
}

void TorchrunCare::tell_at_once(const TorchrunState& former) {
  if (!known_.complete || known_.wait_list.empty()) return news_.reset();
  const bool newcomer = std::ranges::any_of(known_.wait_list, [&](const TorchrunNode& node) {
    return !former.wait_list.contains(node) && !members_.contains(node);
  });
  if (!newcomer || news_ || !former.wait_list.empty()) return;
  News news;
  for (const auto& [client, node] : agents_) {
    if (known_.participants.contains(node)) news.unaware.insert(client);
  }
  if (news.unaware.size() > 1) news_ = std::move(news);
}

/// Nobody who is known is still on the way.
bool TorchrunCare::all_have_come() const {
  const auto real = [](const TorchrunNode& node) { return node.local_id >= 0; };
  return std::ranges::none_of(known_.wait_list, real) && std::ranges::none_of(known_.redundancy_list, real) &&
         std::ranges::all_of(agents_, [&](const auto& agent) {
           return known_.participants.contains(agent.second) || lost_.contains(agent.second);
         });
}

void TorchrunCare::complete_again(TorchrunStore& store, UtcTime now) {
  if (known_.complete || known_.closed || known_.round == 0 || !known_.deadline) return;  // which is set at the minimum
  if (now <= *known_.deadline && !all_have_come()) return;
  TorchrunState state = known_;
  complete_round(state);
  rewrite(state, store);
}

bool TorchrunCare::outsider(ClientId client, TorchrunStore& store) const {
  const auto agent = agents_.find(client);
  return agent != agents_.end() && !known_.participants.empty() && !has(known_, agent->second) &&
         !(known_.complete && leaving(store));  // the others have dropped it while it waited in the exit barrier
}

bool TorchrunCare::idles(ClientId client) const {
  const auto agent = agents_.find(client);
  if (agent == agents_.end() || known_.closed) return false;
  if (known_.complete) return known_.wait_list.contains(agent->second);
  return known_.round > 0 && known_.participants.contains(agent->second);
}

bool TorchrunCare::holds(ClientId client) {
  const auto agent = agents_.find(client);
  if (!news_ || agent == agents_.end() || !known_.participants.contains(agent->second)) return false;
  news_->unaware.erase(client);
  if (news_->unaware.empty()) news_.reset();
  return true;
}

void TorchrunCare::begin_round(TorchrunStore& store) {
  withheld_.reset();
  in_question_.reset();
  members_.clear();
  for (const auto& [node, rank] : known_.participants) members_.insert(node);
  if (!adopted_) return;
  const auto workers = store.worker_store();
  if (!workers) return notes_.push_back(workers.error().message());
  (void)store.empty_worker_store(*workers);  // in our own process: done when it returns
  publish(known_.round, *workers, store);
}

bool TorchrunCare::withholds(std::int64_t round, std::string_view name, std::string_view value) {
  if (!known_.complete || round != known_.round) return false;
  if (name == address_name) {
    withheld_ = Published{round, std::string{value}};
    return true;
  }
  if (name != port_name || !withheld_ || withheld_->round != round) return false;
  const auto port = read_port(value);
  if (adopted_) return true;  // published already
  if (!port) return false;
  in_question_ = WorkerStore{withheld_->address, *port};
  questioned_round_ = round;
  return true;
}

void TorchrunCare::answered(bool answers, TorchrunStore& store) {
  if (!in_question_) return;
  const WorkerStore theirs = *std::exchange(in_question_, std::nullopt);
  const auto ours = answers ? store.worker_store() : Result<WorkerStore>{theirs};
  if (!ours) notes_.push_back(ours.error().message());
  adopted_ = answers && ours;
  publish(questioned_round_, ours ? *ours : theirs, store);
  notes_.push_back(adopted_ ? "the workers of torchrun's agents meet at our store, port " +
                                  std::to_string(ours->port.value())
                            : "the workers' store at " + theirs.address + " is a worker's own: left as it is");
}

void TorchrunCare::publish(std::int64_t round, const WorkerStore& workers, TorchrunStore& store) {
  const std::string prefix = main_key() + "." + std::to_string(round) + "/";
  if (auto set = store.set(prefix + std::string{address_name}, workers.address); !set) {
    notes_.push_back(set.error().message());
  }
  if (auto set = store.set(prefix + std::string{port_name}, std::to_string(workers.port.value())); !set) {
    notes_.push_back(set.error().message());
  }
}

void TorchrunCare::gone(ClientId client, TorchrunStore& store) {
  const auto agent = agents_.extract(client);
  if (agent) lost_.erase(agent.mapped());
  if (news_ && news_->unaware.erase(client) > 0 && news_->unaware.empty()) news_.reset();
  if (!agent || known_.closed || !has(known_, agent.mapped())) return;
  notes_.push_back("node " + agent.mapped().addr + ": torchrun's agent has ended");
  TorchrunState state = known_;
  remove_node(state, {}, agent.mapped());
  if (calls_for_another(state, store)) state.wait_list.insert(caller);
  rewrite(state, store);
}

void TorchrunCare::turn(TorchrunStore& store, const std::function<bool(ClientId)>& waits, UtcTime now) {
  if (news_ && now - news_->since.value_or(now) >= hold_limit) news_.reset();
  if (news_ && !news_->since) news_->since = now;
  call_together(store, now);
  complete_again(store, now);
  if (known_.closed || (known_.complete && leaving(store))) return;  // in the exit barrier nobody waits for heartbeats
  TorchrunState state = known_;
  bool any = false;
  for (const auto& [client, node] : agents_) {
    const auto heartbeat = state.last_heartbeats.find(node);
    if (heartbeat == state.last_heartbeats.end() || now - heartbeat->second < fresh || !waits(client)) continue;
    heartbeat->second = now;
    any = true;
  }
  if (any) rewrite(state, store);
}

JobView TorchrunCare::view(JobView known) const {
  known.phase = known_.closed ? "ended" : known_.complete ? "running" : "gathering";
  known.round = Round{known_.round};
  known.nodes.clear();
  for (const auto& [node, rank] : known_.participants) {
    JobView::Node row{.host = shown(node), .state = known_.complete ? "seated" : "ready", .torchruns = !is_ours(node)};
    if (known_.complete) row.group_rank = GroupRank{static_cast<int>(rank)};
    known.nodes.push_back(std::move(row));
  }
  for (const auto* list : {&known_.wait_list, &known_.redundancy_list}) {
    for (const TorchrunNode& node : *list) {
      if (node.local_id >= 0)
        known.nodes.push_back({.host = shown(node), .state = "ready", .torchruns = !is_ours(node)});
    }
  }
  std::ranges::stable_sort(known.nodes, {}, &JobView::Node::host);
  return known;
}

/// Nobody else can have written since: the store is this process's own.
bool TorchrunCare::rewrite(const TorchrunState& state, TorchrunStore& store) {
  const std::string text = to_base64(write_torchrun_state(state));
  const auto held = store.compare_set(main_key(), text_, text);
  wrote({}, store);
  return held && *held == text;
}

}  // namespace torchup
