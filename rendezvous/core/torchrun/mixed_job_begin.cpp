// A mixed job: how one becomes of a job of ours.
#include <algorithm>
#include <utility>

#include "rendezvous/core/torchrun/mixed_job.hpp"
#include "rendezvous/core/torchrun/mixed_round.hpp"
#include "rendezvous/core/torchrun/mixed_static.hpp"

namespace torchup {

bool MixedJob::is_static(const Rendezvous& pure) {
  if (pure.phase() != Rendezvous::Phase::gathering) return false;
  const Membership& members = pure.members();
  return std::ranges::any_of(members.slots(),
                             [&](const auto& entry) { return members.at(entry.second).join->group_rank.has_value(); });
}

bool MixedJob::wanted(TorchrunStore& store, const Rendezvous& pure) {
  if (active_ || pure.verdict()) return false;
  if (pure.member_count() == 0) return false;
  if (pure.phase() != Rendezvous::Phase::gathering && pure.member_count() >= pure.terms()->max_nodes) return false;
  if (is_static(pure)) {
    const int nodes = pure.terms()->max_nodes;
    return pure.member_count() < nodes && static_torchrun_waits(store, run_id_, nodes);
  }
  const auto text = store.find(torchrun_state_key(run_id_));
  if (!text || !*text || **text == torchrun_no_state) return false;
  const std::size_t hash = std::hash<std::string_view>{}(**text);
  if (hash == refused_) return false;  // it was read once, and costs as much each time
  const auto state = torchrun_state_in(**text);
  const bool meets = state && !state->closed && !state->last_heartbeats.empty();
  if (!meets) refused_ = hash;
  return meets;
}

std::vector<RendezvousAction> MixedJob::begin(const Rendezvous& pure, TimePoint now) {
  active_ = true;
  static_ = is_static(pure);
  now_ = now;
  JobPeople people = pure.people();
  terms_ = std::move(people.terms);
  facts_ = std::move(people.facts);
  members_ = std::move(people.members);
  ended_ = std::move(people.ended);
  lost_agents_ = std::move(people.lost);
  last_round_ = people.last_round;
  if (static_) {
    plays_ = std::make_unique<MixedStatic>(run_id_);
  } else {
    plays_ = std::make_unique<MixedRound>(run_id_);
  }
  note(TorchrunCame{});
  std::vector<Slot> all;
  for (const auto& [node, slot] : members_.slots()) all.push_back(slot);
  std::ranges::sort(all, {}, [&](Slot slot) { return members_.at(slot).seniority; });
  const auto running = pure.running();
  for (const Slot slot : all) {
    Member& member = members_.at(slot);
    const bool busy = running && member.in_round();
    member.round.reset();  // torchrun's begin at 0
    if (member.peer && !busy && member.stage != Member::Stage::stopping) {
      Join join = *member.join;
      join.terms = *terms_;
      take_part(slot, join, now);
      continue;
    }
    if (member.peer && busy) {
      actions_.push_back(
          Tell{*member.peer, StopWorkers{*running, StopCause::membership_change, "a torchrun agent joins the job"}});
    }
    members_.remove(slot);  // it joins when its workers have stopped, or comes back by another connection
  }
  return std::exchange(actions_, {});
}

}  // namespace torchup
