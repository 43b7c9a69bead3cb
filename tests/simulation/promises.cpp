#include "promises.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/core/membership/ended_jobs.hpp"

namespace torchup::simulation {
namespace {

/// What a process that has just been woken, or told to kill its workers, needs for it.
constexpr Duration grace = 30ms;
/// Clocks differ by a hundredth.
constexpr Duration slow(Duration duration) { return duration * 102 / 100; }

}  // namespace

namespace {

/// Whether both are places in what was decided once.
bool same_round(const Placement& one, const Placement& other) {
  return one.round == other.round && one.group_world_size == other.group_world_size &&
         one.restart_count == other.restart_count && one.membership_changes == other.membership_changes &&
         one.master_port == other.master_port;
}

}  // namespace

/// Whether a coordinator without memory decides anew about a round that a former life of it had decided.
bool Promises::begins_again(const Placement& place) const {
  if (rounds_.empty() || !memory_lost_ || rounds_.rbegin()->second.told > *memory_lost_) return false;
  if (place.round < rounds_.rbegin()->first) return true;
  return place.round == rounds_.rbegin()->first && !same_round(place, rounds_.rbegin()->second.place);
}

void Promises::placed(const std::string& node, const Placement& place) {
  const auto size = place.group_world_size;
  const bool is_new = rounds_.empty() || rounds_.rbegin()->first < place.round || begins_again(place);
  world_.promise(!is_new || round_size(range_, terms_.nodes_multiple_of, size) == size,
                 "a round of a size that the job's range does not allow");
  world_.promise(!is_drained(agent_name(NodeId{node})), "a drained node has a rank");
  world_.promise(place.world_size == 2 * size, "the world size does not add up");
  world_.promise(place.first_rank.value() == 2 * place.group_rank.value(), "ranks are not dense");
  world_.promise(place.group_rank.value() >= 0 && place.group_rank.value() < size, "a group rank beyond the round");
  if (begins_again(place)) {
    for (auto* rounds : {&failed_, &counted_}) rounds->clear();
    rounds_.clear();
    rounds_.emplace(place.round, RoundTruth{place, {}, world_.now()});
    begun_ = false;
  } else if (rounds_.empty() || rounds_.rbegin()->first < place.round) {
    check_counts(place);
    rounds_.emplace(place.round, RoundTruth{place, {}, world_.now()});
  }
  const auto found = rounds_.find(place.round);
  if (found == rounds_.end()) world_.broken(fmt::format("round {} is told after a later one", place.round.value()));
  RoundTruth& round = found->second;
  world_.promise(same_round(place, round.place), "one round, two decisions");
  const auto [seat, fresh] = round.nodes.emplace(place.group_rank.value(), node);
  world_.promise(fresh || seat->second == node, "one group rank of a round for two nodes");
}

/// From one placed round to the next, the count rises by one for a failure that no lost node explains, and else stays.
void Promises::check_counts(const Placement& place) {
  world_.promise(place.restart_count <= terms_.max_restarts, "more restarts than allowed");
  if (std::exchange(begun_, false)) {
    return world_.promise(place.restart_count == 0, "restarts before the first round");
  }
  const auto& [former, truth] = *rounds_.rbegin();
  const int more = place.restart_count - truth.place.restart_count;
  if (more < 0) world_.broken(fmt::format("restarts go back: {} after round {}", more, former.value()));
  if (more > 1) world_.broken(fmt::format("{} restarts are counted for round {}", more, former.value()));
  if (more == 1 && !failed_.contains(former)) world_.broken("a restart is counted, and no worker had failed");
  const bool explained = node_fault_ && *node_fault_ >= truth.told - terms_.lease * 2;
  if (more == 0 && counted_.contains(former) && !explained) {
    world_.broken(fmt::format("the restart after round {} is lost", former.value()));
  }
  restarts_ += static_cast<std::uint64_t>(more);
}

void Promises::ordered(const Order& order, const std::function<std::string(const std::string&)>& agent_at) {
  any_order_ = true;
  if (const auto* drain = std::get_if<order::Drain>(&order)) drained_.insert(agent_at(drain->node));
  if (const auto* undrain = std::get_if<order::Undrain>(&order)) drained_.erase(agent_at(undrain->node));
  if (const auto* resize = std::get_if<order::Resize>(&order)) range_ = {resize->min_nodes, resize->max_nodes};
}

void Promises::forget_orders() {
  range_ = range_of(terms_);
  drained_.clear();
}

void Promises::lost_memory() {
  forgotten_ = forgotten_ || any_order_;
  forget_orders();
  memory_lost_ = world_.now();
  if (verdict_) former_verdicts_.push_back(*std::exchange(verdict_, {}));
}

void Promises::job_begins() {
  if (verdict_) former_verdicts_.push_back(*std::exchange(verdict_, {}));
  begun_ = true;
  forget_orders();
  ++job_;
}

bool Promises::was_decided(const Verdict& verdict) const {
  return verdict_ == verdict ||
         std::find(former_verdicts_.begin(), former_verdicts_.end(), verdict) != former_verdicts_.end();
}

void Promises::stopped(const StopWorkers& stop) {
  if (stop.cause == StopCause::worker_failure) counted_.insert(stop.round);
}

void Promises::decided(const Verdict& verdict, bool own_leave) {
  if (own_leave || was_decided(verdict)) return;
  if (verdict_) {
    world_.broken(fmt::format("two verdicts: {} ({}) and {} ({})", verdict_->exit_code, verdict_->reason,
                              verdict.exit_code, verdict.reason));
  }
  verdict_ = verdict;
  if (verdict.exit_code != 1 || rounds_.empty()) return;
  const auto& [round, truth] = *rounds_.rbegin();
  world_.promise(failed_.contains(round), "the job failed, and no worker of its last round had");
  world_.promise(truth.place.restart_count == terms_.max_restarts, "the job failed with restarts left");
}

/// Whose agent cannot reach a coordinator that remembers nothing keeps its workers for a while.
bool Promises::excused(const Workers& workers) const {
  if (world_.now() < workers.unaware_until) return true;
  return memory_lost_ && workers.started < *memory_lost_ && workers.hindered_until + terms_.lease >= *memory_lost_ &&
         world_.now() < *memory_lost_ + slow(workers_wait);
}

void Promises::check_rounds(const std::vector<Workers>& nodes) const {
  const Workers* first = nullptr;
  std::set<int> ranks;
  for (const Workers& one : nodes) {
    const bool just_woken =
        one.place && one.started < one.agent->awake_since() && world_.now() < one.agent->awake_since() + grace;
    const bool acts = one.place && one.agent->alive() && !one.agent->stopped() && !just_woken;
    if (!acts || excused(one) || one.job != job_) continue;
    if (!first) first = &one;
    if (!same_round(*one.place, *first->place)) {
      world_.broken(fmt::format("{} has workers of round {}, {} of round {}", first->host, first->place->round.value(),
                                one.host, one.place->round.value()));
    }
    if (!ranks.insert(one.place->group_rank.value()).second) world_.broken("workers of two nodes have one group rank");
  }
}

void Promises::workers_start(std::vector<Workers>& nodes, std::size_t index, const Placement& place) {
  nodes[index].place = place;
  nodes[index].job = job_;
  nodes[index].started = world_.now();
  check_rounds(nodes);
}

}  // namespace torchup::simulation
