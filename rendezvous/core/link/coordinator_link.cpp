// The link machine: what the agent says, time, and the fence.
#include "rendezvous/core/link/coordinator_link.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

/// Of the join timeout: after that part of it nobody is early any more.
constexpr int untold_part = 10;
/// Before its Join an agent has no terms; a lease is needed all the same.
constexpr Duration lease_before_join = std::chrono::seconds{10};
/// The fence comes before the lease is over, however the two clocks run.
constexpr Duration margined(Duration promised) { return promised * 9 / 10; }
}  // namespace

CoordinatorLink::CoordinatorLink(CoordinatorLinkSettings settings, TimePoint now)
    : settings_{std::move(settings)}, chance_{settings_.seed}, line_since_{now},
      out_since_{now}, retry_at_{now}, heard_of_{now}, keep_alive_at_{now} {}

std::vector<link::Action> CoordinatorLink::step(const link::Event& event, TimePoint now,
                                                std::optional<TimePoint> awake) {
  if (over_) return {};
  awake_ = awake.value_or(now);
  const int incarnation = incarnation_;
  // Before the first dial there is nothing to sleep over: the clock may have begun long ago.
  const auto expected = next_line_ == 0 ? std::nullopt : deadline();
  if (expected && now > *expected + lease() / 4) slept(now - *expected, now);
  fence_if_due(now);
  // The agent that says this join has not heard yet that it was fenced: it will say another.
  const auto* say = std::get_if<link::Say>(&event);
  const bool void_join = incarnation_ != incarnation && say && std::holds_alternative<Join>(say->message);
  if (!void_join) std::visit([&](const auto& happened) { on(happened, now); }, event);
  due(now);
  return std::exchange(actions_, {});
}

// ---- what the agent says

void CoordinatorLink::on(const link::Say& event, TimePoint now) {
  std::visit([&](const auto& said) { say(said, now); }, event.message);
}

void CoordinatorLink::say(const Join& join, TimePoint now) {
  if (ending_) return;
  standing_.join = join;
  standing_.join->former = former_;
  standing_.stage = Resume::Stage::ready;
  standing_.placement.reset();
  if (!line_) return;
  standing_.told = true;
  heard_of_ = now;  // a place is given only after this join has arrived
  keep_alive_at_ = now;
  act(link::SetPatience{*line_, kernel_patience()});
  write(*standing_.join);
}

void CoordinatorLink::say(const StoreReady& ready, TimePoint) {
  if (!standing_.join) return;
  standing_.store = ready;
  write(ready);
}

/// What is said of a place that this agent has no more concerns nobody.
void CoordinatorLink::say(const WorkersFailed& failed, TimePoint) {
  if (!standing_.placement || standing_.placement->round != failed.round) return;
  if (standing_.stage != Resume::Stage::stopping) {
    standing_.stage = Resume::Stage::failed;
    standing_.failed = failed;
  }
  write(failed);
}

void CoordinatorLink::say(const WorkersSucceeded& succeeded, TimePoint) {
  if (!standing_.placement || standing_.placement->round != succeeded.round) return;
  if (standing_.stage == Resume::Stage::running) standing_.stage = Resume::Stage::succeeded;
  write(succeeded);
}

void CoordinatorLink::say(const Leave& leave, TimePoint now) {
  leave_ = leave;
  if (!ending_) leave_until_ = now + (line_ ? leave_limit : Duration::zero());  // with nobody to answer, it is granted
  write(leave);
}

// An answer goes where the question came from: a coordinator that has begun anew counts from 0 again.

void CoordinatorLink::say(const Examined& examined, TimePoint) {
  if (examined_ != examined.number) return;
  if (examined.last) examined_.reset();
  write(examined);
}

void CoordinatorLink::say(const Arrivals& arrivals, TimePoint) {
  if (std::exchange(arrivals_asked_, false)) write(arrivals);
}

void CoordinatorLink::say(const AskLook& ask, TimePoint) {
  if (runs()) write(ask);
}

/// Who speaks for nobody asks for nothing, and nobody hears of it.
void CoordinatorLink::say(const NodeEvent& event, TimePoint now) {
  if (!is_member()) return events_.lose();
  if (auto told = events_.admit(event.line, now)) write(*std::move(told));
}

void CoordinatorLink::say(const Ask& ask, TimePoint) {
  if (is_member()) write(ask);
}

void CoordinatorLink::say(const Answer& answer, TimePoint) {
  if (asked_.erase(answer.number) > 0) write(answer);
}

void CoordinatorLink::on(const link::Report& event, TimePoint) { report_ = event.progress; }

void CoordinatorLink::on(const link::ReportNode& event, TimePoint) { node_report_.set(event.node); }

/// Workers of ours are in a round that nobody has told us to stop.
bool CoordinatorLink::runs() const { return standing_.placement && standing_.stage != Resume::Stage::stopping; }

void CoordinatorLink::write(AgentFrame frame) {
  if (line_) act(link::Write{*line_, std::move(frame)});
}

void CoordinatorLink::on(const link::Directed& event, TimePoint now) {
  if (ending_ || event.term < greatest_term_) return;
  directed_ = event.endpoints;
  if (line_ && line_term_ == event.term) return;
  hops_ = 0;
  go_to(event.term, event.endpoints, now);
}

void CoordinatorLink::on(const link::Undirected& event, TimePoint) {
  if (ending_) return;
  const bool final = event.exit_code != 0;
  if (final && !line_) return conclude(LinkLost{event.exit_code, event.why});
  if (!line_) trouble(event.why, exit_code::unreachable);
}

void CoordinatorLink::on(const link::Ended& event, TimePoint now) {
  if (!line_ && !ending_) hear(End{event.verdict}, now);
}

void CoordinatorLink::on(const link::Finish&, TimePoint) {
  hang_up_attempt();
  if (line_) act(link::Close{*std::exchange(line_, {}), link::Close::How::after_writes});
  over_ = true;
}

// ---- time

void CoordinatorLink::on(const link::Wake&, TimePoint) {}

/// We were asleep, not the endpoint: nothing was tried meanwhile, and what came lies unread. Whoever was about to
/// answer is asked again, for an old answer says nothing of now.
void CoordinatorLink::slept(Duration gap, TimePoint now) {
  out_since_ = std::max(out_since_ + gap, now + lease() - settings_.join_timeout);
  if (attempt_ && !settings_.one_connection) attempt_over(now);
}

void CoordinatorLink::due(TimePoint now) {
  if (over_) return;
  if (line_ && now >= keep_alive_at_) keep_alive(now);
  if (ending_) return;
  fence_if_due(now);
  if (leave_until_ && now >= *leave_until_) {
    return conclude(CoordinatorMessage{End{verdict_of(*leave_)}});
  }
  // Whoever holds the one connection is no stranger, and may take its time.
  if (attempt_ && !settings_.one_connection) {
    if (!attempt_->quiet && now >= attempt_->since + quiet_limit) {
      attempt_->quiet = true;
      if (!welcomed_once_ && !seeks() && !of_several()) act(link::MeetForeigner{});
    }
    if (now >= attempt_->since + answer_limit()) mute("it accepts connections and says nothing", now);
  }
  if (!line_ && now >= out_since_ + settings_.join_timeout) {
    const std::string waited = seconds(settings_.join_timeout);
    const std::string why = last_trouble_.empty() ? "it does not answer" : last_trouble_;
    return conclude(
        LinkLost{lost_code_, lost_code_ == exit_code::mismatch
                                 ? fmt::format("the {} did not accept this node within {}: {}", place(), waited, why)
                                 : fmt::format("the {} was not reached within {}: {}", place(), waited, why)});
  }
  if (const auto at = dial_at(); at && now >= *at) {
    dialling_ = LineId{next_line_++};
    const auto port = port_at_ == 0 ? std::nullopt : std::optional{settings_.further_ports.at(port_at_ - 1)};
    dialled_place_ = next_place();
    act(link::Dial{*dialling_, dial_limit, port, dialled_place_});
  }
}

std::optional<TimePoint> CoordinatorLink::deadline() const {
  if (over_) return {};
  if (ending_) return line_ ? std::optional{keep_alive_at_} : std::nullopt;
  TimePoint first = line_ ? keep_alive_at_ : out_since_ + settings_.join_timeout;
  const auto consider = [&](const std::optional<TimePoint>& at) {
    if (at) first = std::min(first, *at);
  };
  consider(fence_at());
  consider(leave_until_);
  consider(dial_at());
  if (attempt_ && !settings_.one_connection) {
    consider(attempt_->since + (attempt_->quiet ? answer_limit() : quiet_limit));
  }
  return first;
}

/// One attempt at a time: while there is no line, and beside one that is in doubt.
std::optional<TimePoint> CoordinatorLink::dial_at() const {
  if (dialling_ || attempt_) return {};
  if (settings_.directed && told_.empty() && directed_.empty()) return {};
  if (!line_) return retry_at_;
  if (settings_.one_connection) return {};
  if (!told_.empty() || (unseated_ && !settings_.directed)) return retry_at_;
  if (unanswered_.empty()) return {};
  return std::max(retry_at_, unanswered_.front().sent + doubt_after());
}

Duration CoordinatorLink::lease() const { return standing_.join ? standing_.join->terms.lease : lease_before_join; }

/// By then the lease has decided.
Duration CoordinatorLink::kernel_patience() const { return lease() + std::chrono::seconds{2}; }

Duration CoordinatorLink::doubt_after() const { return std::min<Duration>(std::chrono::seconds{1}, lease() / 3); }

/// Where to dial: where we were told to first; else the next in the list. Nothing: the endpoint.
std::optional<Endpoint> CoordinatorLink::next_place() {
  if (!told_.empty()) {
    Endpoint place = std::move(told_.front());
    told_.pop_front();
    return place;
  }
  if (settings_.directed) return directed_.front();
  const std::vector<Endpoint>& list = settings_.endpoints;
  if (list.empty()) return {};
  // Beside a line that is in doubt the others are asked.
  if (line_ && list.size() > 1 && list[place_at_] == line_place_) place_at_ = (place_at_ + 1) % list.size();
  return list[place_at_];
}

void CoordinatorLink::keep_alive(TimePoint now) {
  const auto& place = standing_.placement ? standing_.placement : former_;
  const int nodes = place ? place->group_world_size : 1;
  write(KeepAlive{++keep_alive_number_, runs() ? report_ : std::nullopt,
                  is_member() ? node_report_.take(nodes, now) : std::nullopt, seen_});
  if (!unanswered_.empty() && now >= unanswered_.front().sent + doubt_after()) doubt();
  unanswered_.push_back({keep_alive_number_, now, awake_});
  keep_alive_at_ = now + std::min<Duration>(std::chrono::seconds{1}, lease() / 5);
}

/// splitmix64: the jitter needs no better one.
Duration CoordinatorLink::jittered(Duration duration) {
  std::uint64_t bits = chance_ += 0x9e3779b97f4a7c15;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
  const double half_to_one = 0.5 + static_cast<double>((bits ^ bits >> 31) >> 11) * 0x1p-54;
  return std::chrono::duration_cast<Duration>(duration * half_to_one);
}

// ---- the fence

/// When workers of ours must be dead if nothing is heard. Without workers too there is a limit: after it, what lies
/// unread on this line may be a place that is no longer ours.
std::optional<TimePoint> CoordinatorLink::fence_at() const {
  if (ending_ || (!standing_.placement && !line_)) return {};
  const TimePoint lease_over = heard_of_ + margined(lease());
  if (!ended_) return lease_over;
  TimePoint at = heard_of_ + workers_wait;
  if (returned_at_) at = std::min(at, *returned_at_ + margined(lease()));
  return std::max(at, lease_over);
}

void CoordinatorLink::fence_if_due(TimePoint now) {
  if (const auto at = fence_at(); at && now >= *at) {
    fence("no sign of the coordinator for " + seconds(now - heard_of_), now);
  }
}

void CoordinatorLink::fence(const std::string& reason, TimePoint now) {
  if (line_) act(link::Close{*line_});
  hang_up_attempt();
  lose_line(reason, now);
  doubt();  // it answers perhaps, and only its proof is old: another may have the seat
  ended_ = false;
  returned_at_.reset();
  if (!standing_.placement) return;
  const Round round = standing_.placement->round;
  count_stop(StopCause::fenced);
  forget_place();
  retry_at_ = now + jittered(std::chrono::seconds{1});
  tell(StopWorkers{round, StopCause::fenced, reason});
}

/// What a stop adds to the restarts and membership changes that this agent states. Said twice, it counts once.
void CoordinatorLink::count_stop(StopCause cause) {
  if (!standing_.placement || standing_.stage == Resume::Stage::stopping) return;
  former_ = after_stop(*standing_.placement, cause);
  standing_.placement = former_;
}

/// The next Join is a new node's.
void CoordinatorLink::forget_place() {
  ++incarnation_;
  standing_ = {};
}

// ---- what the agent hears

/// Of one job this node may have begun before the one that hosts: that nobody listens there is no news yet.
bool CoordinatorLink::may_be_early(TimePoint now) const {
  const Duration untold = std::min<Duration>(untold_limit, settings_.join_timeout / untold_part);
  return !welcomed_once_ && now < out_since_ + untold;
}

void CoordinatorLink::trouble(const std::string& what, int code, bool told) {
  // Of several ports the first one's is told, or what is wrong with us at whichever has our coordinator.
  const bool misfit = code == exit_code::mismatch;
  if (seeks() && !misfit && (port_at_ != 0 || lost_code_ == exit_code::mismatch)) return;
  lost_code_ = code;
  last_trouble_ = what;
  if (!told || what == told_trouble_) return;
  told_trouble_ = what;
  tell(Waiting{fmt::format("{}: {}", place(), what), true});
}

std::string CoordinatorLink::place() const {
  if (settings_.one_connection) return "front of this job";
  if (!settings_.known_as.empty()) return settings_.known_as;
  if (settings_.endpoints.empty()) return "rendezvous endpoint " + to_string(settings_.endpoint);
  std::string all;
  for (const Endpoint& each : settings_.endpoints) all += (all.empty() ? "" : ",") + to_string(each);
  return "rendezvous endpoints " + all;
}

void CoordinatorLink::conclude(LinkEvent last) {
  hang_up_attempt();
  if (line_) act(link::Close{*std::exchange(line_, {}), link::Close::How::after_writes});
  over_ = true;
  act(link::Tell{std::move(last)});
}

}  // namespace torchup
