#include "rendezvous/core/seat/candidacy.hpp"

#include <algorithm>
#include <utility>

namespace torchup {
namespace {

bool answers(const auto& asked, std::uint64_t number) { return asked && asked->number == number; }

}  // namespace

Duration seat_ttl(Duration lease) {
  return std::clamp<Duration>(lease / 2, std::chrono::seconds{2}, std::chrono::seconds{5});
}

Duration campaign_wait_of(GroupRank rank) {
  return std::min<Duration>(std::chrono::milliseconds{20} * rank.value(), std::chrono::seconds{1});
}

Candidacy::Candidacy(CandidacySettings settings, TimePoint now) : settings_{settings}, look_at_{now} {}

std::vector<candidacy::Action> Candidacy::step(const candidacy::Event& event, TimePoint now) {
  std::visit([&](const auto& what) { on(what, now); }, event);
  due(now);
  return std::exchange(actions_, {});
}

std::optional<TimePoint> Candidacy::deadline() const {
  std::optional<TimePoint> first;
  const auto consider = [&](const std::optional<TimePoint>& at) {
    if (at && (!first || *at < *first)) first = at;
  };
  if (role_ == Role::left) return first;
  if (!look_) consider(look_at_);
  if (!granting_ && !taking_) consider(campaign_at_);
  if (!renewing_) consider(renew_at_);
  return first;
}

void Candidacy::due(TimePoint now) {
  if (role_ == Role::left) return;
  if (!look_ && look_at_ && now >= *look_at_) {
    look_at_.reset();
    look_ = Asked{next_number_++, now, known_};
    act(candidacy::Look{look_->number});
  }
  if (!granting_ && !taking_ && campaign_at_ && now >= *campaign_at_) {
    campaign_at_.reset();
    if (lease_ != etcd::LeaseId{0}) {
      take(now);
    } else {
      granting_ = Asked{next_number_++, now, known_};
      act(candidacy::Grant{granting_->number, seat_ttl(settings_.lease)});
    }
  }
  if (!renewing_ && renew_at_ && now >= *renew_at_) {
    renew_at_ = now + seat_ttl(settings_.lease) / 3;
    renewing_ = Asked{next_number_++, now, known_};
    act(candidacy::Renew{renewing_->number, lease_});
  }
}

Duration Candidacy::look_period() const { return std::min<Duration>(std::chrono::seconds{1}, settings_.lease / 5); }

void Candidacy::retry(TimePoint now) {
  look_at_ = now + retry_;
  retry_ = std::min(retry_ * 2, Duration{retry_longest});
}

void Candidacy::campaign(TimePoint at) {
  if (!granting_ && !taking_ && (!campaign_at_ || at < *campaign_at_)) campaign_at_ = at;
}

void Candidacy::take(TimePoint now) {
  taking_ = Asked{next_number_++, now, known_};
  act(candidacy::Take{taking_->number, was_, lease_});
}

void Candidacy::drop_lease(bool revoke) {
  if (revoke && lease_ != etcd::LeaseId{0}) act(candidacy::Revoke{lease_});
  lease_ = etcd::LeaseId{0};
  renew_at_.reset();
  renewing_.reset();
}

// ---- answers of etcd's

void Candidacy::on(const candidacy::Read& event, TimePoint now) {
  if (!answers(look_, event.number)) return;
  const Asked look = *std::exchange(look_, {});
  if (role_ == Role::left) return;
  if (event.view.revision < look.known) return retry(now);  // it goes back in time: another member is asked
  known_ = std::max(known_, event.view.revision);
  retry_ = retry_first;
  // What a txn of ours does meanwhile is known by its own answer, or by the next look.
  if (taking_) return retry(now);
  const Term term = event.view.term;
  greatest_ = std::max(greatest_, term);
  if (term == Term{0}) return saw_vacant(now);
  const bool under_ours = lease_ != etcd::LeaseId{0} && event.view.lease == lease_;
  if (under_ours || (role_ == Role::holding && term == term_)) return saw_ours(look, term, now);
  saw_other(event.view, now);
}

void Candidacy::saw_vacant(TimePoint now) {
  was_ = Term{0};
  if (role_ == Role::holding) {
    seated_ = false;
    drop_lease(false);
    campaign(now);
  } else {
    role_ = Role::seeking;
    campaign(now + settings_.campaign_wait);
  }
  look_at_ = now + look_period();
}

void Candidacy::saw_ours(const Asked& look, Term term, TimePoint now) {
  look_at_ = now + look_period();
  if (role_ == Role::holding && term == term_) {
    seated_ = true;
    confirmed_ = look.sent;
    act(candidacy::Confirm{look.sent});
    if (lease_ != etcd::LeaseId{0}) {
      campaign_at_.reset();
      return;
    }
  }
  // The lease is dead, or our txn was applied and its answer lost, and with it the state.
  was_ = term;
  campaign(now);
}

void Candidacy::saw_other(const candidacy::View& view, TimePoint now) {
  if (role_ == Role::holding) {
    act(candidacy::Yield{view.term, view.holder.endpoints});
    seated_ = false;
    term_ = Term{0};
  }
  drop_lease(true);
  const bool attends = role_ == Role::standing_by && before_ == view.term;
  before_ = view.term;
  if (view.term == ended_) {
    role_ = Role::seeking;
    was_ = view.term;
    campaign(now + settings_.campaign_wait);
    look_at_ = now + look_period();
    return;
  }
  campaign_at_.reset();
  role_ = Role::standing_by;
  look_at_ = now + look_period();  // until we are attached
  if (!attends) act(candidacy::Attend{view.term, view.holder.endpoints});
}

void Candidacy::on(const candidacy::Granted& event, TimePoint now) {
  if (!answers(granting_, event.number)) return;
  granting_.reset();
  if (role_ == Role::left || role_ == Role::standing_by) return act(candidacy::Revoke{event.lease});
  lease_ = event.lease;
  renew_at_ = now + seat_ttl(settings_.lease) / 3;
  take(now);
}

void Candidacy::on(const candidacy::Taken& event, TimePoint now) {
  if (!answers(taking_, event.number)) return;
  const TimePoint sent = std::exchange(taking_, {})->sent;
  look_at_ = now;
  if (lease_ == etcd::LeaseId{0}) return;  // it was given back or died meanwhile, and the seat with it
  greatest_ = std::max(greatest_, event.term);
  known_ = std::max(known_, etcd::Revision{event.term.value()});
  const bool held = role_ == Role::holding;
  // While it was vacant somebody else may have had it, whom our members have followed: they are to come back.
  const bool again = held && was_ == term_;
  const bool proved = !held && ended_ != Term{0} && ended_ == before_;
  act(candidacy::Serve{event.term, held ? term_ : before_, again, proved});
  act(candidacy::Confirm{sent});
  role_ = Role::holding;
  term_ = event.term;
  seated_ = true;
  confirmed_ = sent;
}

void Candidacy::on(const candidacy::Missed& event, TimePoint now) {
  if (!answers(taking_, event.number)) return;
  taking_.reset();
  look_at_ = now;
}

void Candidacy::on(const candidacy::Renewed& event, TimePoint now) {
  if (!answers(renewing_, event.number)) return;
  renewing_.reset();
  if (event.alive) return;
  drop_lease(false);
  seated_ = false;
  look_at_ = now;
}

void Candidacy::on(const candidacy::Failed& event, TimePoint now) {
  if (answers(look_, event.number)) {
    look_.reset();
    // Its lease may be over by now, and the seat with it: others, who reach etcd perhaps, shall look.
    if (now >= confirmed_ + seat_ttl(settings_.lease)) seated_ = false;
    if (!event.forbidden) return retry(now);
    look_at_ = now + retry_forbidden;
    return;
  }
  if (answers(renewing_, event.number)) {
    renewing_.reset();
    renew_at_ = now + (event.forbidden ? seat_ttl(settings_.lease) / 3 : retry_first);
  } else if (answers(granting_, event.number) || answers(taking_, event.number)) {
    granting_.reset();
    taking_.reset();
    retry(now);  // nobody knows what was done: the next look tells
  }
}

// ---- what others say

/// A placed agent asks etcd nothing.
void Candidacy::on(const candidacy::Attached& event, TimePoint) {
  greatest_ = std::max(greatest_, event.term);
  if (role_ == Role::standing_by && event.term == greatest_) look_at_.reset();
}

void Candidacy::on(const candidacy::Doubted&, TimePoint now) {
  if (role_ == Role::standing_by) look_at_ = now;
}

void Candidacy::on(const candidacy::HolderEnded& event, TimePoint now) {
  if (role_ == Role::holding || role_ == Role::left || event.term < greatest_) return;
  ended_ = event.term;
  before_ = was_ = event.term;
  role_ = Role::seeking;
  campaign(now + settings_.campaign_wait);
  look_at_ = now;
}

/// Hearsay makes us silent at once; who has the seat the next look tells.
void Candidacy::on(const candidacy::Outvoted& event, TimePoint now) {
  greatest_ = std::max(greatest_, event.term);
  look_at_ = now;
  if (role_ != Role::holding || event.term <= term_) return;
  act(candidacy::Yield{event.term, event.endpoints});
  drop_lease(true);
  role_ = Role::seeking;
  term_ = Term{0};
  seated_ = false;
  if (event.endpoints.empty()) return;
  role_ = Role::standing_by;  // where etcd is not reached, it is known from nobody else
  before_ = event.term;
  act(candidacy::Attend{event.term, event.endpoints});
}

void Candidacy::on(const candidacy::Leave&, TimePoint) {
  if (role_ == Role::left) return;
  if (role_ == Role::holding && !taking_ && lease_ != etcd::LeaseId{0}) {
    act(candidacy::Vacate{term_, lease_});
    act(candidacy::Yield{term_, {}});
    drop_lease(false);
  } else {
    if (role_ == Role::holding) act(candidacy::Yield{term_, {}});
    drop_lease(true);  // whatever a txn on its way still does, the seat goes with its lease
  }
  role_ = Role::left;
  seated_ = false;
}

}  // namespace torchup
