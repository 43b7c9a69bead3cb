#include "rendezvous/core/round/job_watch.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/core/link/message_bytes.hpp"

namespace torchup {
namespace {

/// The round whose workers run and are not about to be stopped. One that is being restored is not whole yet.
std::optional<Round> watched_round(const Rendezvous& rounds) {
  using Phase = Rendezvous::Phase;
  const bool runs = rounds.phase() == Phase::running || rounds.phase() == Phase::doubting;
  return runs ? std::optional{rounds.round()} : std::nullopt;
}

const Member* member_of(const NodeId& node, const Rendezvous& rounds) {
  const auto slot = rounds.members().slots().find(node.value());
  return slot == rounds.members().slots().end() ? nullptr : &rounds.members().at(slot->second);
}

/// The member that is heard by `peer`.
const NodeId* speaker_by(Peer peer, const Rendezvous& rounds) {
  const auto slot = rounds.members().connection(peer).member;
  if (!slot || rounds.members().at(*slot).peer != peer) return nullptr;
  return &rounds.members().at(*slot).join->node;
}

std::size_t held_bytes_of(const NodeWindow& window) {
  std::size_t bytes = sizeof(std::pair<const NodeId, NodeWindow>) + text_bytes(window.host);
  for (const LatestArrivals& told : window.told) {
    bytes += sizeof told + told.numbers.size() * sizeof(LatestArrivals::Number) + text_bytes(told.signature.group) +
             text_bytes(told.signature.operation) + text_bytes(told.dtype);
  }
  return bytes;
}

std::vector<std::string> told_in_one_turn(const hang::Found& found) {
  std::vector<std::string> parts = encode_news(found);
  if (told_bytes(parts) <= found_told_in_one_turn_max) return parts;
  return encode_news(with_fewer_looks(found, found_told_in_one_turn_max));
}

/// The latest, in order.
void keep_latest(std::vector<LateWorker>& workers) {
  std::ranges::stable_sort(workers, std::ranges::greater{}, &LateWorker::late);
  if (workers.size() > late_workers_shown_max) workers.resize(late_workers_shown_max);
}

}  // namespace

std::optional<watch::Event> watch::event_of(Peer peer, AgentMessage& message) {
  if (auto* examined = std::get_if<Examined>(&message)) return Answered{peer, std::move(*examined)};
  if (auto* arrivals = std::get_if<Arrivals>(&message)) return Arrived{peer, std::move(*arrivals)};
  if (std::holds_alternative<AskLook>(message)) return Asked{peer};
  return std::nullopt;
}

std::vector<RendezvousAction> JobWatch::step(const watch::Event& event, const Rendezvous& rounds, TimePoint now) {
  if (!std::holds_alternative<watch::OthersDecide>(event)) follow(rounds, now);
  std::visit([&](const auto& happened) { on(happened, rounds, now); }, event);
  due(rounds, now);
  return std::exchange(actions_, {});
}

std::optional<TimePoint> JobWatch::deadline() const {
  std::optional<TimePoint> first = prune_at_;
  const auto consider = [&](const std::optional<TimePoint>& at) {
    if (at && (!first || *at < *first)) first = at;
  };
  if (hangs_) consider(hangs_->deadline());
  if (ask_waits_) consider(ask_at_);
  consider(window_ ? window_->until : window_at_);
  return first;
}

std::size_t JobWatch::held_bytes() const {
  return (hangs_ ? hangs_->held_bytes() : 0) + (window_ ? window_->bytes : 0);
}

// ---- what the round machine does

void JobWatch::follow(const Rendezvous& rounds, TimePoint now) {
  const auto round = watched_round(rounds);
  if (round != round_) {
    end(rounds, now);
    round_ = round;
    if (round) begin(rounds, now);
  } else if (round && !prune_at_ && rounds.members().revision() != pruned_revision_) {
    prune_at_ = std::max(now, pruned_at_ + prune_pace);
  }
  if (rounds.phase() == Rendezvous::Phase::ended) hangs_.reset();  // another job counts from 0
}

void JobWatch::begin(const Rendezvous& rounds, TimePoint now) {
  const Membership& members = rounds.members();
  hang::AttemptBegins attempt;
  for (const auto& [name, slot] : members.slots()) {
    const Member& member = members.at(slot);
    if (!member.in_round()) continue;
    const NodeRanks ranks{member.join->node, member.join->host, member.seat.first_rank, member.join->local_world_size};
    attempt.world_size = std::max(attempt.world_size, ranks.first_rank.value() + ranks.workers);
    attempt.nodes.push_back(ranks);
    nodes_.emplace(ranks.node, Node{ranks, member.seat.group_rank});
  }
  const JobTerms terms = rounds.terms().value_or(JobTerms{});
  const HangSettings settings{.timeout = terms.hang_timeout, .on_hang = terms.on_hang};
  if (!hangs_ || settings != settings_) hangs_.emplace(settings);
  settings_ = settings;
  const bool wanted = attempt.world_size > 1 && terms.straggler_window > Duration{0};
  window_every_ = std::max(terms.straggler_window, straggler_window_min);
  if (wanted) window_at_ = now + window_every_;
  pruned_revision_ = members.revision();
  pruned_at_ = now;
  heed(std::move(attempt), rounds, now);
}

void JobWatch::end(const Rendezvous& rounds, TimePoint now) {
  if (hangs_) heed(hang::AttemptEnds{}, rounds, now);
  round_.reset();
  nodes_.clear();
  asker_.reset();
  ask_waits_.reset();
  stragglers_ = {};
  compared_.clear();
  window_at_.reset();
  window_.reset();
  late_.clear();
  prune_at_.reset();
}

/// Who has succeeded may go before the others.
void JobWatch::prune(const Rendezvous& rounds, TimePoint now) {
  prune_at_.reset();
  pruned_at_ = now;
  pruned_revision_ = rounds.members().revision();
  std::vector<NodeId> gone;
  for (const auto& [node, _] : nodes_) {
    const Member* const member = member_of(node, rounds);
    if (!member || !member->in_round()) gone.push_back(node);
  }
  for (const NodeId& node : gone) {
    nodes_.erase(node);
    heed(hang::Gone{node}, rounds, now);
  }
}

// ---- what is said

const JobWatch::Node* JobWatch::node_of(Peer peer, const Rendezvous& rounds) const {
  const NodeId* const speaker = speaker_by(peer, rounds);
  const auto node = speaker ? nodes_.find(*speaker) : nodes_.end();
  return node == nodes_.end() ? nullptr : &node->second;
}

void JobWatch::on(const watch::OthersDecide&, const Rendezvous& rounds, TimePoint now) {
  if (round_) end(rounds, now);
}

void JobWatch::on(const watch::Progressed& event, const Rendezvous& rounds, TimePoint now) {
  const NodeId* const node = speaker_by(event.peer, rounds);
  if (round_ && node) heed(hang::Reported{*node, event.report}, rounds, now);
}

void JobWatch::on(const watch::Answered& event, const Rendezvous& rounds, TimePoint now) {
  const NodeId* const node = speaker_by(event.peer, rounds);
  if (!round_ || !node) return;
  heed(hang::Answered{*node, event.examined.number, event.examined.part, event.examined.last}, rounds, now);
}

void JobWatch::on(const watch::Asked& event, const Rendezvous& rounds, TimePoint now) {
  const Node* const node = node_of(event.peer, rounds);
  if (!node) return;
  if (now >= ask_at_) return ask(node->ranks.node, rounds, now);
  if (!ask_waits_) ask_waits_ = node->ranks.node;
}

void JobWatch::ask(const NodeId& node, const Rendezvous& rounds, TimePoint now) {
  ask_waits_.reset();
  ask_at_ = now + asked_look_pace;
  asker_ = node;
  heed(hang::Asked{}, rounds, now);
}

void JobWatch::on(const watch::Arrived& event, const Rendezvous& rounds, TimePoint) {
  const Node* const node = node_of(event.peer, rounds);
  if (!window_ || !node || window_->nodes.contains(node->ranks.node)) return;
  const auto told = decode_window(event.arrivals.part);
  if (told && told->number != window_->number) return;
  NodeWindow heard{.node = node->ranks.node, .host = node->ranks.host};
  if (told) {
    const auto is_own = [&](Rank rank) {
      return rank >= node->ranks.first_rank && rank.value() - node->ranks.first_rank.value() < node->ranks.workers;
    };
    heard.clock_error = told->clock_error;
    heard.told = told->told;
    // Of other nodes' ranks it knows nothing.
    if (told->worst && (!told->worst->rank || is_own(*told->worst->rank))) heard.worst = told->worst;
    std::erase_if(heard.told, [&](const LatestArrivals& one) { return one.only_rank && !is_own(*one.only_rank); });
    for (const LateRank& late : told->late_ranks) {
      if (is_own(late.rank)) window_->late.push_back({late.rank, node->ranks.host, late.late});
    }
    if (window_->late.size() > 2 * late_workers_shown_max) keep_latest(window_->late);
  }
  if (window_->bytes + held_bytes_of(heard) > arrivals_bytes_max) heard.told.clear();
  window_->bytes += held_bytes_of(heard);
  window_->nodes.emplace(heard.node, std::move(heard));
}

// ---- time

void JobWatch::due(const Rendezvous& rounds, TimePoint now) {
  if (prune_at_ && now >= *prune_at_) prune(rounds, now);
  if (ask_waits_ && now >= ask_at_) ask(NodeId{*ask_waits_}, rounds, now);
  if (hangs_) {
    if (const auto at = hangs_->deadline(); at && now >= *at) heed(hang::Wake{}, rounds, now);
  }
  if (window_ && (window_->nodes.size() >= nodes_.size() || now >= window_->until)) close_window(rounds);
  if (!window_ && window_at_ && now >= *window_at_) open_window(rounds, now);
}

// ---- windows

/// Where nobody is watched there are no collectives; and while ranks are looked at, they have enough to answer.
void JobWatch::open_window(const Rendezvous& rounds, TimePoint now) {
  window_at_ = now + (hangs_->looking() ? std::min(window_every_, look_wait_max) : window_every_);
  if (hangs_->looking() || !hangs_->anybody_watched()) return;
  window_ = Window{.number = windows_++, .until = now + look_wait_max};
  tell_all(rounds, Examine{.number = window_->number, .arrivals_only = true});
}

void JobWatch::close_window(const Rendezvous& rounds) {
  Window window = std::move(*window_);
  window_.reset();
  keep_latest(window.late);
  late_ = std::move(window.late);
  std::vector<NodeWindow> nodes;
  for (auto& [_, node] : window.nodes) nodes.push_back(std::move(node));
  for (const StragglerNews& news : stragglers_.window(judge_window(nodes, compared_))) {
    actions_.emplace_back(std::visit([](const auto& one) { return Note{StragglerNoted{to_text(one)}}; }, news));
    tell_news(rounds, std::visit([](const auto& one) { return DiagnosisNews{one}; }, news));
  }
}

// ---- hangs

void JobWatch::heed(const hang::Event& event, const Rendezvous& rounds, TimePoint now) {
  for (const hang::Action& action : hangs_->step(event, now)) {
    std::visit([&](const auto& wanted) { perform(wanted, rounds); }, action);
  }
}

void JobWatch::perform(const hang::Examine& examine, const Rendezvous& rounds) {
  tell_all(rounds, Examine{.number = examine.number, .asked = examine.asked});
}

void JobWatch::perform(const hang::Void& look, const Rendezvous&) {
  actions_.emplace_back(Note{LookVoid{look.reason}});
}

void JobWatch::perform(const hang::Over& over, const Rendezvous& rounds) {
  actions_.emplace_back(Note{HangOver{over.after}});
  tell_news(rounds, over);
}

void JobWatch::perform(const hang::Found& found, const Rendezvous& rounds) {
  const auto asker = std::exchange(asker_, {});
  if (!found.asked) {
    actions_.emplace_back(Note{HangNoted{found.silence, std::string{to_text(found.verdict->kind)},
                                         RankSet{found.verdict->culprits}, std::string{to_text(found.action)}}});
  }
  if (nodes_.empty()) return;
  const auto first = std::ranges::min_element(nodes_, {}, [](const auto& entry) { return entry.second.group_rank; });
  const std::vector<std::string> whole = told_in_one_turn(found);
  const hang::Found brief = in_brief(found, std::max(found_told_bytes_least, found_told_bytes_max / nodes_.size()));
  for (const auto& [node, entry] : nodes_) {
    const bool prints_all = node == first->first || node == asker;
    tell_parts(entry, rounds, prints_all ? whole : told_in_one_turn(told_to(entry.ranks, brief, found)));
  }
}

// ---- telling

void JobWatch::tell(const Node& node, const Rendezvous& rounds, CoordinatorMessage message) {
  const Member* const member = member_of(node.ranks.node, rounds);
  if (member && member->peer) actions_.emplace_back(Tell{*member->peer, std::move(message)});
}

void JobWatch::tell_all(const Rendezvous& rounds, const CoordinatorMessage& message) {
  for (const auto& [_, node] : nodes_) tell(node, rounds, message);
}

void JobWatch::tell_parts(const Node& node, const Rendezvous& rounds, const std::vector<std::string>& parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) tell(node, rounds, HangTold{parts[i], i + 1 == parts.size()});
}

void JobWatch::tell_news(const Rendezvous& rounds, const DiagnosisNews& news) {
  const auto parts = encode_news(news);
  for (const auto& [_, node] : nodes_) tell_parts(node, rounds, parts);
}

}  // namespace torchup
