// The round machine: what people order. `answer` alone says what cannot be; what it accepts is done.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/membership/ended_jobs.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

OrderAnswer accepted(std::string text) { return {true, std::move(text)}; }

std::optional<int> as_number(const std::string& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole ? std::optional{number} : std::nullopt;
}

std::string range_text(const JobRange& range) { return fmt::format("{}:{}", range.min_nodes, range.max_nodes); }

}  // namespace

std::string_view verb_of(const Order& order) {
  static constexpr std::string_view verbs[] = {"stop", "restart", "drain", "undrain", "resize"};
  static_assert(std::size(verbs) == std::variant_size_v<Order>);
  return verbs[order.index()];
}

OrderAnswer Rendezvous::answer(const Order& order, TimePoint now) const {
  if (!terms_) return refused("no node has joined yet");
  return std::visit([&](const auto& what) { return answer_to(what, now); }, order);
}

void Rendezvous::on(const Ordered& event, TimePoint now) {
  if (!answer(event.order, now).accepted) return;
  note(OrderReceived{std::string{verb_of(event.order)}, event.by});
  std::visit([&](const auto& what) { obey(what, event.by, now); }, event.order);
}

OrderAnswer Rendezvous::refused(std::string_view why) const {
  return {false, fmt::format("{} (phase: {})", why, phase_name(phase_))};
}

// ---- what can be done

/// Nothing can be planned while a round ends, or is not known to go on.
std::optional<OrderAnswer> Rendezvous::why_not_now() const {
  switch (phase_) {
    case Phase::gathering:
      if (members_.stopping() > 0) return refused("nodes are stopping their workers");
      return {};
    case Phase::doubting:
      return refused("a worker has failed, and what follows from that is being decided");
    case Phase::restoring:
      return refused("this coordinator has just started, and nodes of the round are awaited");
    case Phase::ended:
      return refused("the job has ended: " + verdict_->reason);
    case Phase::hosting:
    case Phase::running:
      return {};
  }
  return {};
}

/// A stop of the round would start anew what has ended well.
std::optional<OrderAnswer> Rendezvous::why_no_stop() const {
  if (finished_ == 0) return {};
  return refused(fmt::format("the workers of {} of {} nodes have ended well already", finished_, group_world_size_));
}

Result<Rendezvous::Slot> Rendezvous::find_node(const std::string& name) const {
  if (const auto known = members_.slots().find(name); known != members_.slots().end()) return known->second;
  const auto rank = as_number(name);
  std::optional<Slot> by_host, by_rank;
  for (const auto& [node, slot] : members_.slots()) {
    const Member& member = members_.at(slot);
    if (member.join->host == name) {
      if (by_host) return fail(errc::bad_value, fmt::format("several agents are on {}: name a node id", name));
      by_host = slot;
    }
    if (rank && running() && member.in_round() && member.seat.group_rank.value() == *rank) by_rank = slot;
  }
  if (by_host) return *by_host;
  if (by_rank) return *by_rank;
  return fail(errc::bad_value, fmt::format("the job has no node {}", name));
}

/// Members that a round may have, but for one.
int Rendezvous::candidates(std::optional<Slot> but) const {
  return static_cast<int>(std::ranges::count_if(members_.slots(), [&](const auto& entry) {
    return entry.second != but && members_.at(entry.second).is_candidate();
  }));
}

/// From whose turn on even the largest round has no place for those that are there; nothing: it has one for all.
std::optional<Rendezvous::Turn> Rendezvous::first_left_out() const {
  const auto places = static_cast<std::size_t>(round_size(range().max_nodes));
  if (places == 0 || members_.slots().size() <= places) return {};
  std::vector<Turn> turns;
  for (const auto& [node, slot] : members_.slots()) {
    if (members_.at(slot).is_candidate()) turns.push_back(turn_of(members_.at(slot)));
  }
  if (turns.size() <= places) return {};
  const auto first = turns.begin() + static_cast<std::ptrdiff_t>(places);
  std::ranges::nth_element(turns, first);
  return *first;
}

OrderAnswer Rendezvous::answer_to(const order::Stop& stop, TimePoint) const {
  if (stop.save && stop.now) return refused("workers that are killed cannot save");
  if (phase_ != Phase::ended) return accepted(stop.save ? "the workers are asked to save and stop" : "the job ends");
  if (members_.empty()) return refused("the job has ended: " + verdict_->reason);
  return accepted("the job ends already: " + verdict_->reason);
}

OrderAnswer Rendezvous::answer_to(const order::Restart&, TimePoint) const {
  if (const auto why = why_not_now()) return *why;
  if (phase_ != Phase::running) return refused("no round runs");
  if (const auto why = why_no_stop()) return *why;
  return accepted(fmt::format("round {} stops, and another begins", round_.value()));
}

OrderAnswer Rendezvous::answer_to(const order::Drain& drain, TimePoint) const {
  if (phase_ == Phase::ended) return *why_not_now();
  const auto slot = find_node(drain.node);
  if (!slot) return refused(slot.error().context);
  const Member& member = members_.at(*slot);
  const std::string& host = member.join->host;
  if (member.drained) return accepted(fmt::format("node {} is drained already", host));
  if (const auto why = why_not_now()) return *why;
  const int left = candidates(*slot);
  if (round_size(left) == 0) {
    return refused(fmt::format("the job needs {}, and without {} it would have {}",
                               nodes_wanted(range().min_nodes, range().max_nodes), host, left));
  }
  if (!member.in_round()) return accepted(fmt::format("node {} stands by from now on", host));
  if (const auto why = why_no_stop()) return *why;
  return accepted(fmt::format("node {} is drained: round {} stops, and the others go on", host, round_.value()));
}

OrderAnswer Rendezvous::answer_to(const order::Undrain& undrain, TimePoint) const {
  if (phase_ == Phase::ended) return *why_not_now();
  const auto slot = find_node(undrain.node);
  if (!slot) return refused(slot.error().context);
  const Member& member = members_.at(*slot);
  if (!member.drained) return accepted(fmt::format("node {} is not drained", member.join->host));
  if (const auto why = why_not_now()) return *why;
  return accepted(fmt::format("node {} may have a place again", member.join->host));
}

OrderAnswer Rendezvous::answer_to(const order::Resize& resize, TimePoint) const {
  if (phase_ == Phase::ended) return *why_not_now();
  const JobRange wanted{resize.min_nodes, resize.max_nodes};
  if (wanted.min_nodes < 1 || wanted.max_nodes < wanted.min_nodes) {
    return refused(fmt::format("{} is no range of nodes", range_text(wanted)));
  }
  if (wanted.max_nodes > settings_.agents_max) {
    return refused(fmt::format("this coordinator takes {} agents at most", settings_.agents_max));
  }
  if (torchup::round_size(wanted, terms_->nodes_multiple_of, wanted.max_nodes) == 0) {
    return refused(fmt::format("a round has a multiple of {} nodes, and none is within {}", terms_->nodes_multiple_of,
                               range_text(wanted)));
  }
  if (has_given_ranks()) return refused("the nodes have their group ranks by --node-rank: their number is given");
  if (wanted == range()) return accepted(fmt::format("the job has {} nodes already", range_text(wanted)));
  if (const auto why = why_not_now()) return *why;
  const int there = candidates();
  const bool has_round = phase_ != Phase::gathering;
  if (has_round && torchup::round_size(wanted, terms_->nodes_multiple_of, there) == 0) {
    return refused(fmt::format("{} nodes are there, too few for {}", there, range_text(wanted)));
  }
  const auto why = why_no_stop();
  if (has_round && why && group_world_size_ > wanted.max_nodes) return *why;
  return accepted(fmt::format("the job goes on with {} nodes", range_text(wanted)));
}

/// By each node's user, as in a static rendezvous; not by a scheduler's index, of which some may be missing.
bool Rendezvous::has_given_ranks() const {
  if (terms_->rank_order == RankOrder::index) return false;
  return std::ranges::any_of(members_.slots(),
                             [&](const auto& entry) { return members_.at(entry.second).join->group_rank.has_value(); });
}

// ---- what is done

/// The workers save and stop together, and that costs no restart.
void Rendezvous::stop_by_plan(const std::string& reason, TimePoint now) {
  if (phase_ == Phase::running) count_change();
  planned_ = phase_ == Phase::running;
  stop_round(StopCause::membership_change, reason, now);
}

void Rendezvous::obey(const order::Stop& stop, const std::string& by, TimePoint now) {
  if (phase_ == Phase::ended) {
    if (stop.now) end_sooner(*verdict_, {});
    return;
  }
  Verdict verdict{.exit_code = exit_code::terminated, .reason = "stopped by " + by, .kill_now = stop.now};
  if (stop.save) {
    verdict.exit_code = exit_code::requeue;
    verdict.stop_signal = 0;
    verdict.save = true;
  }
  end(std::move(verdict), now);
}

void Rendezvous::obey(const order::Restart&, const std::string& by, TimePoint now) {
  stop_by_plan("restarted by " + by, now);
}

void Rendezvous::obey(const order::Drain& drain, const std::string& by, TimePoint now) {
  const Slot slot = *find_node(drain.node);
  const Member& member = members_.at(slot);
  if (member.drained) return;
  drain_agent(slot);
  if (member.in_round()) stop_by_plan(fmt::format("node {} is drained by {}", member.join->host, by), now);
}

void Rendezvous::drain_agent(Slot slot) {
  changed();
  drained_.insert(agent_name(members_.at(slot).join->node));
  members_.set_drained(slot, true);
  arm_roster();
}

void Rendezvous::obey(const order::Undrain& undrain, const std::string& by, TimePoint now) {
  const Slot slot = *find_node(undrain.node);
  if (!members_.at(slot).drained) return;
  changed();
  const std::string host = members_.at(slot).join->host;
  drained_.erase(agent_name(members_.at(slot).join->node));
  members_.set_drained(slot, false);
  arm_roster();
  refit(fmt::format("node {} is undrained by {}", host, by), now);
}

void Rendezvous::obey(const order::Resize& resize, const std::string& by, TimePoint now) {
  const JobRange wanted{resize.min_nodes, resize.max_nodes};
  if (wanted == range()) return;
  changed();
  range_ = wanted;
  arm_roster();
  refit(fmt::format("resized to {} nodes by {}", range_text(wanted), by), now);
}

/// The round has as many nodes as it may, else it stops for another. Of too many the last ones stand by.
void Rendezvous::refit(const std::string& reason, TimePoint now) {
  if ((phase_ != Phase::running && phase_ != Phase::hosting) || finished_ > 0) return;
  int size = round_size(group_world_size_ + static_cast<int>(admissible(now).size()));
  if (size == 0) size = round_size(candidates());
  if (size == group_world_size_) return;
  std::vector<Slot> last = seats_;
  std::erase_if(last, [&](Slot slot) { return members_.at(slot).seat.group_rank.value() < size; });
  std::ranges::sort(last, {}, [&](Slot slot) { return members_.at(slot).seat.group_rank; });
  for (const Slot slot : last) members_.make_youngest(slot);
  stop_by_plan(reason, now);
}

}  // namespace torchup
