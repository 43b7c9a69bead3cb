#include "rendezvous/core/seat/proof.hpp"

#include <algorithm>

namespace torchup {

void Proof::seated(TimePoint sent) { seated_ = seated_ ? std::max(*seated_, sent) : sent; }

void Proof::round_runs(const std::vector<NodeId>& members) {
  round_over();
  for (const NodeId& member : members) members_.try_emplace(member);
}

void Proof::round_over() {
  members_.clear();
  proved_.clear();
}

void Proof::set_proved(Member& member, std::optional<TimePoint> at) {
  if (member.proved) proved_.erase(proved_.find(*member.proved));
  member.proved = at;
  if (at) proved_.insert(*at);
}

void Proof::detached(const NodeId& member) {
  const auto found = members_.find(member);
  if (found == members_.end()) return;
  found->second.unechoed.clear();
  set_proved(found->second, {});
}

void Proof::answered(const NodeId& member, std::uint64_t number, TimePoint sent) {
  const auto found = members_.find(member);
  if (found == members_.end()) return;
  auto& unechoed = found->second.unechoed;
  unechoed.push_back({number, sent});
  if (unechoed.size() > unechoed_max) unechoed.pop_front();
}

void Proof::echoed(const NodeId& member, std::uint64_t number) {
  const auto found = members_.find(member);
  if (found == members_.end()) return;
  auto& unechoed = found->second.unechoed;
  // A number that we did not send, or no longer know, proves nothing.
  const auto answer = std::ranges::find(unechoed, number, &Answer::number);
  if (answer == unechoed.end()) return;
  set_proved(found->second, answer->sent);
  unechoed.erase(unechoed.begin(), answer + 1);
}

std::optional<TimePoint> Proof::at() const {
  const bool complete = !members_.empty() && proved_.size() == members_.size();
  if (!complete) return seated_;
  return seated_ ? std::max(*seated_, *proved_.begin()) : *proved_.begin();
}

std::optional<Duration> Proof::age(TimePoint now) const {
  const auto since = at();
  return since ? std::optional{std::max(now - *since, Duration::zero())} : std::nullopt;
}

}  // namespace torchup
