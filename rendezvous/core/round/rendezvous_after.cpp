// The round machine: the end of a job, and what comes after it.
#include <algorithm>
#include <iterator>
#include <utility>

#include "rendezvous/core/link/message_bytes.hpp"
#include "rendezvous/core/membership/reporter.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/core/text/names.hpp"

namespace torchup {
namespace {

/// An exit code from here on tells of a signal: somebody wants the job to be over.
constexpr int shell_code_of_signals = 128;

}  // namespace

// ---- the end

void Rendezvous::end(Verdict verdict, TimePoint now) {
  changed();
  note(JobConcluded{verdict.exit_code, verdict.reason});
  phase_ = Phase::ended;
  planned_ = false;
  verdict.reporter = reporter(members_, verdict.failures, FirstReporter::nobody, now);
  verdict_ = told_verdict(std::move(verdict), members_.slots().size());
  forget_at_ = now + settings_.verdict_kept;
  expect_late(now);
  for (const auto& [node, slot] : members_.slots()) tell(members_.at(slot), End{*verdict_});
}

// ---- agents that come late

/// Nodes that are started together come one by one, and a short job may be over before the last of them has come. Where
/// as many have come as were expected, they only have other names.
void Rendezvous::expect_late(TimePoint now) {
  const bool ours_alone = hosted_ || terms_->own_run_id;
  if (!ours_alone || static_cast<std::size_t>(member_count()) >= expected_hosts_.size()) return;
  std::ranges::copy_if(expected_hosts_, std::back_inserter(late_),
                       [&](const std::string& host) { return !members_.has_host(host); });
  const bool by_itself = formed_once_ && verdict_->exit_code < shell_code_of_signals;
  const auto last = begun_at_.value_or(now) + terms_->last_call;
  std::vector<std::string> never_here;
  std::ranges::copy_if(late_, std::back_inserter(never_here),
                       [&](const std::string& host) { return !members_.losses().has(host); });
  if (!hosted_ || !by_itself || never_here.empty() || now >= last) return;
  late_until_ = last;
  note(LateAwaited{std::move(never_here)});
}

bool Rendezvous::awaits_late() const {
  return phase_ == Phase::ended && late_until_ && now_ < *late_until_ && !late_.empty();
}

/// The verdict for an agent that was no part of the job; nothing: it is not over, or another begins with that agent.
std::optional<Verdict> Rendezvous::missed(Peer peer, const Join& join) {
  if (members_.of(peer)) return {};
  if (foregone_) return foregone_;
  const auto host = std::ranges::find(late_, join.host);
  if (phase_ != Phase::ended || host == late_.end()) return {};
  late_.erase(host);
  return verdict_;
}

// ---- another job

/// The run id is used again: whatever the former job was, this one is another.
void Rendezvous::begin_anew() {
  changed();
  std::vector<std::string> agents = lost_agents_.names();
  for (const auto& [node, slot] : members_.slots()) agents.push_back(agent_name(NodeId{node}));
  const TimePoint kept_until = forget_at_.value_or(now_ + settings_.verdict_kept);
  const std::uint64_t former = ended_.add(*std::exchange(verdict_, {}), round_, std::move(agents), kept_until);
  members_.dismiss_all(former);
  note(JobBegunAnew{});
  forget_job();
}

/// What a next job of the run id does not take over.
void Rendezvous::forget_job() {
  phase_ = Phase::gathering;
  lost_agents_ = {};
  next_round_ = std::max(Round{round_.value() + 1}, next_round_);
  round_ = next_round_;
  formed_once_ = learning_ = planned_ = false;
  range_.reset();
  drained_.clear();
  restarts_ = {};
  membership_changes_ = 0;
  terms_.reset();
  expect({});
  facts_.clear();
  refusals_.clear();
  last_roster_.clear();
  late_.clear();
  seats_.clear();
  failures_.clear();
  failed_.clear();
  may_restart_ = true;
  group_world_size_ = world_size_ = unfinished_ = finished_ = 0;
  for (auto* at :
       {&begun_at_, &late_until_, &gather_until_, &last_call_until_, &leave_until_, &store_until_, &admit_at_,
        &doubt_until_, &cause_until_, &patience_until_, &roster_at_, &slept_until_, &counted_failure_at_}) {
    at->reset();
  }
  blocker_.reset();
}

void Rendezvous::take_back(JobPeople people, std::optional<Verdict> verdict, TimePoint now) {
  const std::uint64_t former_revision = revision();
  now_ = now;
  members_ = std::move(people.members);
  revision_ = former_revision + 1 - members_.revision();
  ended_ = std::move(people.ended);
  const Round last = round_ = std::max(round_, people.last_round);
  forget_job();
  lost_agents_ = std::move(people.lost);
  forget_at_ = std::max(now + settings_.verdict_kept, ended_.kept_until());
  if (!verdict) return;
  terms_ = std::move(people.terms);
  round_ = last;
  phase_ = Phase::ended;
  verdict_ = std::move(verdict);
}

}  // namespace torchup
