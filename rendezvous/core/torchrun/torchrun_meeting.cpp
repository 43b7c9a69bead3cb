#include "rendezvous/core/torchrun/torchrun_meeting.hpp"

#include <fmt/format.h>

#include <utility>

#include "rendezvous/core/torchrun/torchrun_seating.hpp"
#include "rendezvous/core/torchrun_wire/torchrun_roles.hpp"

namespace torchup {
namespace {

/// A group rank 0 that has published nothing for so long never will: it believes that all know its store.
constexpr Duration silence_of_first = std::chrono::milliseconds{2500};
/// Rounds in which we look for what a silent group rank 0 published last.
constexpr std::int64_t rounds_looked_back = 64;

}  // namespace

void TorchrunMeeting::begin(std::int64_t round, int group_rank, std::vector<TorchrunNode> members, TimePoint now) {
  round_ = round;
  group_rank_ = group_rank;
  members_ = std::move(members);
  began_at_ = now;
  asked_ = told_ = false;
  place_.reset();
}

Result<TorchrunMeeting::Outcome> TorchrunMeeting::turn(TorchrunStore& store, const Join& join, bool may_tell,
                                                       TimePoint now) {
  Outcome outcome;
  outcome.failure = meeting_failure(round_, now - began_at_, place_.has_value(), members_.front());
  if (outcome.failure) return outcome;
  if (!place_) {
    if (auto found = find_place(store, outcome, now); !found) return found.error();
  }
  if (place_) {
    if (auto taken = take_ranks(store, join, may_tell, outcome); !taken) return taken.error();
  }
  return outcome;
}

// ---- where workers meet

Result<> TorchrunMeeting::find_place(TorchrunStore& store, Outcome& outcome, TimePoint now) {
  auto there = published_place(store, run_id_, round_);
  if (!there) return there.error();
  if (*there) {
    place_ = **there;
    return {};
  }
  if (group_rank_ == 0) return offer_place(store, outcome);
  if (now - began_at_ < silence_of_first) return {};
  return speak_for_first(store);
}

Result<> TorchrunMeeting::offer_place(TorchrunStore& store, Outcome& outcome) {
  if (!own_port_) {
    if (!std::exchange(asked_, true)) outcome.message = HostStore{Round{round_}};
    return {};
  }
  const MeetingPlace place{address_, *own_port_};
  if (auto done = publish_place(store, run_id_, round_, place); !done) return done;
  place_ = place;
  return {};
}

Result<> TorchrunMeeting::speak_for_first(TorchrunStore& store) {
  std::optional<MeetingPlace> known;
  if (former_first_ == members_.front()) known = former_place_;
  for (std::int64_t back = round_ - 1; !known && back >= 0 && back >= round_ - rounds_looked_back; --back) {
    auto then = published_place(store, run_id_, back);
    if (!then) return then.error();
    // Rounds in which others were first do not close its store: a node that was away for one believes in it as before.
    if (*then && (*then)->address == shown(members_.front())) known = **then;
  }
  if (!known) return {};  // a new first node, which is about to publish its own
  // Whatever stands there in the end is read in the next turn.
  const std::string port = fmt::format("{}", known->port.value());
  if (auto set = store.compare_set(key(torchrun_key::master_address), "", known->address); !set) return set.error();
  if (auto set = store.compare_set(key(torchrun_key::master_port), "", port); !set) return set.error();
  return {};
}

// ---- who has how many workers

Result<> TorchrunMeeting::take_ranks(TorchrunStore& store, const Join& join, bool may_tell, Outcome& outcome) {
  if (!told_) {
    // No worker of this round starts before all roles are told, and those of the last have ended: what they left goes.
    if (!may_tell || (round_ > 0 && !store.empty(*place_, round_))) return {};
    const std::string own = key(role_name(group_rank_));
    if (auto set = store.set(own, write_role(join, group_rank_)); !set) return set;
    told_ = true;
  }
  if (group_rank_ == 0) {
    auto shared = share_torchrun_ranks(
        store, [this](const std::string& name) { return key(name); }, static_cast<int>(members_.size()));
    if (!shared || !*shared) return shared ? Result<>{} : shared.error();
  }
  auto text = store.find(key(ranks_name(group_rank_)));
  if (!text) return text.error();
  if (!*text) return {};
  const auto ranks = read_ranks(**text, static_cast<int>(members_.size()), join.local_world_size);
  if (!ranks) return outcome.failure = ranks.error().context, Result<>{};
  former_place_ = place_;
  former_first_ = members_.front();
  outcome.placement =
      placed_by(*ranks, Round{round_}, GroupRank{group_rank_}, static_cast<int>(members_.size()), *place_);
  return {};
}

}  // namespace torchup
