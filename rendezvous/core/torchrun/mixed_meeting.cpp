#include "rendezvous/core/torchrun/mixed_meeting.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/core/torchrun/torchrun_meeting.hpp"
#include "rendezvous/core/torchrun/torchrun_seating.hpp"
#include "rendezvous/core/torchrun_wire/torchrun_roles.hpp"

namespace torchup {
namespace {

const MixedMeeting::Guest* first_of(const std::vector<MixedMeeting::Guest>& guests) {
  const auto first = std::ranges::find(guests, 0, &MixedMeeting::Guest::group_rank);
  return first == guests.end() ? nullptr : &*first;
}

}  // namespace

void MixedMeeting::begin(std::int64_t round, std::vector<TorchrunNode> members, TimePoint now) {
  round_ = round;
  members_ = std::move(members);
  began_at_ = now;
  asked_ = told_ = shared_ = false;
  place_.reset();
}

Result<MixedMeeting::Outcome> MixedMeeting::turn(TorchrunStore& store, const std::vector<Guest>& guests,
                                                 TimePoint now) {
  Outcome outcome;
  outcome.failure = meeting_failure(round_, now - began_at_, place_.has_value(), members_.front());
  if (outcome.failure) return outcome;
  if (!place_) {
    if (auto found = find_place(store, guests, outcome); !found) return found.error();
  }
  if (place_ && !told_) {
    if (auto told = tell_roles(store, guests); !told) return told.error();
  }
  if (told_) {
    if (auto taken = take_ranks(store, guests, outcome); !taken) return taken.error();
  }
  return outcome;
}

Result<> MixedMeeting::find_place(TorchrunStore& store, const std::vector<Guest>& guests, Outcome& outcome) {
  auto there = published_place(store, run_id_, round_);
  if (!there) return there.error();
  const Guest* const first = first_of(guests);
  if (*there || !first) {
    place_ = *std::move(there);
    return {};
  }
  auto common = store.common_place();
  if (!common) return common.error();
  if (!*common && !first->store) {
    if (!std::exchange(asked_, true)) outcome.to_open_store = first->id;
    return {};
  }
  place_ = *common ? **common : MeetingPlace{first->address, *first->store};
  return publish_place(store, run_id_, round_, *place_);
}

/// No worker of this round starts before all roles are told, and those of the last have ended: what they left goes.
Result<> MixedMeeting::tell_roles(TorchrunStore& store, const std::vector<Guest>& guests) {
  if (round_ > 0 && !store.empty(*place_, round_)) return {};
  for (const Guest& guest : guests) {
    auto set = store.set(key(role_name(guest.group_rank)), write_role(*guest.join, guest.group_rank));
    if (!set) return set;
  }
  told_ = true;
  return {};
}

Result<> MixedMeeting::take_ranks(TorchrunStore& store, const std::vector<Guest>& guests, Outcome& outcome) {
  const int nodes = static_cast<int>(members_.size());
  if (first_of(guests) && !shared_) {
    auto shared = share_torchrun_ranks(
        store, [this](const std::string& name) { return key(name); }, nodes);
    if (!shared) return shared.error();
    shared_ = *shared;
  }
  for (const Guest& guest : guests) {
    auto text = store.find(key(ranks_name(guest.group_rank)));
    if (!text) return text.error();
    if (!*text) continue;
    const auto ranks = read_ranks(**text, nodes, guest.join->local_world_size);
    if (!ranks) return outcome.failure = ranks.error().context, Result<>{};
    outcome.places.emplace_back(guest.id,
                                placed_by(*ranks, Round{round_}, GroupRank{guest.group_rank}, nodes, *place_));
  }
  return {};
}

}  // namespace torchup
