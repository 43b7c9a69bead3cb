// The link machine: its lines, how they begin and end, and what the coordinator says on them.
#include <algorithm>

#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/link/coordinator_link.hpp"

namespace torchup {
namespace {

/// Less is the time between two readings of clocks.
constexpr Duration suspension_least = std::chrono::milliseconds{20};

/// A coordinator ends us with these codes alone: no job has succeeded because somebody refuses us.
int permitted(int exit_code) {
  const bool known =
      exit_code == exit_code::unfit || exit_code == exit_code::too_few || exit_code == exit_code::unreachable;
  return known ? exit_code : exit_code::mismatch;
}

/// Those of them that can be dialled.
std::vector<Endpoint> read_endpoints(const std::vector<std::string>& texts) {
  std::vector<Endpoint> endpoints;
  for (const std::string& text : texts) {
    auto endpoint = parse_endpoint(text, Port{0});
    if (endpoint && endpoint->port != Port{0}) endpoints.push_back(*std::move(endpoint));
  }
  return endpoints;
}

}  // namespace

void CoordinatorLink::on(const link::DialFailed& event, TimePoint now) {
  if (dialling_ != event.line) return;
  dialling_.reset();
  if (settings_.one_connection) return conclude(LinkLost{exit_code::unreachable, event.why});
  foreign_since_.reset();
  mute_since_.reset();
  trouble(event.why, exit_code::unreachable, !event.refused || !may_be_early(now));
  retry_later(now);
  if (event.refused && broke_ && dialled_place_ && directed_ == std::vector{*dialled_place_}) {
    broke_ = false;
    act(link::SawEnd{line_term_});
  }
  if (!event.refused) {
    if (!returned_at_) ended_ = false;  // no answer: somebody may live there who cannot reach us either
    return;
  }
  if (!welcomed_once_ && !of_several()) act(link::NobodyListens{});
  if (!line_ && embedded_ && standing_.placement) fence("the coordinator's process has ended", now);
}

void CoordinatorLink::on(const link::Dialled& event, TimePoint now) {
  if (dialling_ != event.line) return;
  dialling_.reset();
  attempt_ = Attempt{.line = event.line, .since = now};
  act(link::Write{event.line, Hello{.has_token = has_token(), .run_id = settings_.run_id}});
}

void CoordinatorLink::on(const link::NotProved& event, TimePoint now) {
  if (!attempt_ || attempt_->line != event.line) return;
  unproved(event.why, exit_code::mismatch);
  attempt_over(now);
}

void CoordinatorLink::on(const link::Closed& event, TimePoint now) {
  if (attempt_ && attempt_->line == event.line) {
    return mute(event.why.empty() ? "it closes the connection without a word" : event.why, now);
  }
  if (line_ != event.line) return;
  if (dialling_) act(link::Close{*std::exchange(dialling_, {})});  // it may hang; there is better reason for one now
  if (ending_) return line_.reset();
  if (event.why.empty()) {
    lose_line("the coordinator closed the connection", now);
    ended_ = true;
    returned_at_.reset();
    if (of_several()) act(link::SawEnd{line_term_});
    if (embedded_ && standing_.placement) fence("the coordinator's process has ended", now);
  } else {
    lose_line("the connection to the coordinator broke: " + event.why, now);
    broke_ = true;
    doubt();
  }
}

/// Told once, until somebody is sure again.
void CoordinatorLink::doubt() {
  if (of_several() && !std::exchange(doubts_, true)) act(link::Doubts{});
}

/// The coordinator is at one of these. It is dialled at once, beside the line in use.
void CoordinatorLink::go_to(std::int64_t term, const std::vector<Endpoint>& endpoints, TimePoint now) {
  greatest_term_ = std::max(greatest_term_, term);
  told_.assign(endpoints.begin(), endpoints.end());
  if (told_.empty() || ++hops_ > hops_max) return;
  hang_up_attempt();
  retry_at_ = now;
  retry_delay_ = retry_first;
}

void CoordinatorLink::on(const link::Garbled& event, TimePoint now) {
  if (attempt_ && attempt_->line == event.line) return foreign(event.why, now);
  if (line_ != event.line) return;
  act(link::Close{*line_});
  if (ending_) return line_.reset();
  lose_line("the coordinator said what cannot be understood: " + event.why, now);
  doubt();
}

void CoordinatorLink::lose_line(const std::string& reason, TimePoint now) {
  if (line_ && line_answered_) out_since_ = now;
  // Who welcomes us and breaks at once would be dialled as fast as it can do that.
  const bool lasted = now - line_since_ >= retry_longest;
  line_.reset();
  unanswered_.clear();
  if (lasted) {
    retry_delay_ = retry_first;
    retry_at_ = now;
  } else {
    retry_later(now);
  }
  trouble(reason, exit_code::unreachable);
}

void CoordinatorLink::hang_up_attempt() {
  if (dialling_) act(link::Close{*std::exchange(dialling_, {})});
  if (attempt_) act(link::Close{std::exchange(attempt_, {})->line});
}

void CoordinatorLink::attempt_over(TimePoint now) {
  hang_up_attempt();
  retry_later(now);
}

void CoordinatorLink::retry_later(TimePoint now) {
  if (seeks()) {
    port_at_ = (port_at_ + 1) % (settings_.further_ports.size() + 1);
    if (port_at_ != 0) {
      retry_at_ = now;
      return;
    }
  }
  if (!told_.empty() && hops_ <= hops_max) {
    retry_at_ = now;
    return;
  }
  if (!settings_.endpoints.empty()) {
    place_at_ = (place_at_ + 1) % settings_.endpoints.size();
    if (place_at_ != 0) {
      retry_at_ = now;
      return;
    }
  }
  const Duration longest = mute_since_ && !welcomed_once_ ? retry_mute_longest : retry_longest;
  retry_delay_ = std::min(retry_delay_, longest);
  retry_at_ = now + jittered(retry_delay_);
  retry_delay_ = std::min(retry_delay_ * 2, longest);
}

// ---- a line that is not welcome yet

void CoordinatorLink::on(const link::Heard& event, TimePoint now) {
  if (attempt_ && attempt_->line == event.line) {
    std::visit([&](const auto& said) { greeted(said, now); }, event.frame);
  } else if (line_ == event.line) {
    std::visit([&](const auto& said) { hear(said, now); }, event.frame);
  }
}

void CoordinatorLink::greeted(const Welcome& welcome, TimePoint now) {
  if (welcome.version < agent_protocol_min || welcome.version > agent_protocol_max) {
    return foreign("it speaks another version", now);
  }
  if (welcome.term < greatest_term_) {
    trouble("it was the coordinator before another one", exit_code::unreachable);
    return attempt_over(now);
  }
  if (line_ && welcome.term > line_term_) {
    const std::string place = dialled_place_ ? to_string(*dialled_place_) : "";
    Moved moved{welcome.term, {}};
    if (!place.empty()) moved.endpoints.push_back(place);
    write(std::move(moved));
  }
  greatest_term_ = line_term_ = welcome.term;
  line_place_ = dialled_place_;
  hops_ = 0;
  told_.clear();
  broke_ = doubts_ = unseated_ = false;
  seen_ = 0;
  if (of_several()) act(link::Attends{welcome.term});
  const auto former = std::exchange(line_, attempt_->line);
  const bool in_vain = former && !line_answered_;  // the line before was welcome too, and said no more than that
  if (former && line_answered_) out_since_ = now;
  line_answered_ = false;
  embedded_ = welcome.embedded;
  welcomed_once_ = true;
  foreign_since_.reset();
  mute_since_.reset();
  line_since_ = now;
  // That we are still a member is known when a keep-alive behind our Resume is answered.
  if (!standing_.placement) {
    // The one connection may have been welcomed later than a lease: it counts from then, for it has no place to lose.
    if (!in_vain) heard_of_ = settings_.one_connection ? now : attempt_->since;
    ended_ = false;
  }
  if (ended_ && !returned_at_) returned_at_ = now;
  attempt_.reset();
  keep_alive_at_ = now;
  unanswered_.clear();
  forget_questions();
  asked_.clear();
  node_report_.begin_anew();
  void_leave_.reset();
  clock_ = day_ = {};  // it may be another machine's
  restate();
  if (former) act(link::Close{*former});
}

void CoordinatorLink::restate() {
  act(link::SetPatience{*line_, kernel_patience()});
  if (standing_.join && standing_.told) {
    write(Resume{*standing_.join, standing_.stage, standing_.placement, standing_.store, standing_.failed});
  } else if (standing_.join) {
    write(*standing_.join);
    standing_.told = true;
  }
  if (leave_) write(*leave_);
}

void CoordinatorLink::greeted(const Refused& refused, TimePoint now) {
  const bool trusted = has_token() || !line_;
  const bool others = seeks() && refused.reason.starts_with(port_of_another_job);
  if (trusted && !others) return conclude(LinkLost{permitted(refused.exit_code), refused.reason});
  unproved("refused: " + refused.reason, others ? exit_code::unreachable : exit_code::mismatch);
  attempt_over(now);
}

/// What it says is not proved, and need not be: whoever is there has to prove itself.
void CoordinatorLink::greeted(const Elsewhere& elsewhere, TimePoint now) {
  foreign_since_.reset();
  mute_since_.reset();
  // Where our line leads already is no news.
  const bool known = elsewhere.term >= greatest_term_ && !(line_ && elsewhere.term == line_term_);
  const auto endpoints = known ? read_endpoints(elsewhere.endpoints) : std::vector<Endpoint>{};
  if (endpoints.empty()) trouble("no coordinator is active there or known", exit_code::unreachable);
  hang_up_attempt();
  if (!endpoints.empty()) go_to(elsewhere.term, endpoints, now);
  if (endpoints.empty() || hops_ > hops_max) {
    told_.clear();
    hops_ = 0;
    retry_later(now);
  }
}

/// It coordinates no more.
void CoordinatorLink::hear(const Elsewhere& elsewhere, TimePoint now) {
  if (ending_) return;
  act(link::Close{*line_});
  lose_line("the coordinator has given up its seat", now);
  ended_ = false;
  greatest_term_ = std::max(greatest_term_, elsewhere.term);
  doubt();
  go_to(elsewhere.term, read_endpoints(elsewhere.endpoints), now);
}

/// At the port of a large job many are told so.
void CoordinatorLink::greeted(const Busy&, TimePoint now) { mute("it has no place for one more connection", now); }

/// Somebody who was not proved refuses, or does not prove itself. It may be gone, or mended, before the join timeout.
void CoordinatorLink::unproved(const std::string& why, int code) {
  foreign_since_.reset();
  mute_since_.reset();
  trouble(why, code);
}

/// Somebody accepts connections, and that is all: a coordinator that is about to end, or has no descriptor left, or
/// another program.
void CoordinatorLink::mute(const std::string& what, TimePoint now) {
  foreign_since_.reset();
  if (!mute_since_) mute_since_ = attempt_->since;
  if (!welcomed_once_ && !seeks() && !of_several()) act(link::MeetForeigner{});
  const bool lasts = !settings_.one_connection && now - *mute_since_ >= mute_limit;
  trouble(lasts ? what + ": is it at the limit of its connections, or another program?" : what, exit_code::unreachable);
  attempt_over(now);
}

/// Somebody answers who is no coordinator; that may be a coordinator about to end, so it must last.
void CoordinatorLink::foreign(const std::string& what, TimePoint now) {
  mute_since_.reset();
  if (!foreign_since_) foreign_since_ = attempt_->since;
  const std::string text =
      welcomed_once_ ? "the coordinator does not answer (" + what + ")"
                     : "what answers there is no torchup coordinator (" + what + "): has another program this port?";
  if (!welcomed_once_ && !seeks() && !of_several()) act(link::MeetForeigner{});
  if (!welcomed_once_ && !seeks() && !of_several() && !has_token() && now - *foreign_since_ >= foreign_limit) {
    return conclude(LinkLost{exit_code::unreachable, to_string(settings_.endpoint) + ": " + text});
  }
  trouble(text, exit_code::unreachable);
  attempt_over(now);
}

// ---- what the coordinator says

void CoordinatorLink::hear(const KeepAliveAnswer& answer, TimePoint now) {
  seen_ = std::max(seen_, answer.number);
  unseated_ = of_several() && !answer.seated;
  if (unseated_) doubt();
  if (!unseated_ && std::exchange(doubts_, false)) act(link::Attends{line_term_});
  while (!unanswered_.empty() && unanswered_.front().number <= answer.number) {
    const Asked asked = unanswered_.front();
    if (asked.number == answer.number && answer.clock_ns > 0) add_round_trip(asked, answer.clock_ns, now);
    if (asked.number == answer.number && answer.day_ns > 0) {
      day_.add(asked.sent.time_since_epoch(), Duration{answer.day_ns}, now.time_since_epoch());
    }
    const TimePoint proved = asked.sent - answer.age;
    heard_of_ = of_several() ? std::max(heard_of_, proved) : proved;  // what was proved stays so
    unanswered_.pop_front();
    line_answered_ = true;
    last_trouble_.clear();
    told_trouble_.clear();
    ended_ = false;
    returned_at_.reset();
  }
}

/// Monotonic clocks are compared, by which collectives are timed: a suspension, in which ours stood still and the
/// coordinator's went on, makes what was known of them wrong.
void CoordinatorLink::add_round_trip(const Asked& asked, std::int64_t clock_ns, TimePoint now) {
  const Duration suspended = now - awake_;
  if (suspended - suspended_ > suspension_least) clock_ = {};
  suspended_ = suspended;
  if (suspended - (asked.sent - asked.awake) > suspension_least) return;
  clock_.add(asked.awake.time_since_epoch(), Duration{clock_ns}, awake_.time_since_epoch());
}

void CoordinatorLink::hear(const Refused& refused, TimePoint) {
  if (!ending_) conclude(LinkLost{permitted(refused.exit_code), refused.reason});
}

void CoordinatorLink::hear(const HostStore& host, TimePoint) {
  if (standing_.join && standing_.stage == Resume::Stage::ready) tell(host);
}

void CoordinatorLink::hear(const Placed& placed, TimePoint) {
  if (!standing_.join || standing_.stage != Resume::Stage::ready) return;
  standing_.placement = placed.placement;
  former_ = placed.placement;
  standing_.stage = Resume::Stage::running;
  report_.reset();
  forget_questions();
  tell(placed);
}

/// A fence is about this node, whatever round it names; any other stop is about a round, and the agent obeys its own.
void CoordinatorLink::hear(const StopWorkers& stop, TimePoint) {
  const auto placement = standing_.placement;
  if (stop.cause == StopCause::fenced) {
    if (!standing_.join) return;  // the new node has not joined yet: it is the old one that is meant
    count_stop(stop.cause);
    forget_place();
    return tell(StopWorkers{placement ? placement->round : stop.round, stop.cause, stop.reason});
  }
  if (!placement || placement->round != stop.round || standing_.stage == Resume::Stage::stopping) return;
  count_stop(stop.cause);
  standing_.stage = Resume::Stage::stopping;
  if (leave_ && is_void(*leave_, stop)) {
    void_leave_ = std::exchange(leave_, {});
    leave_until_.reset();
  }
  tell(stop);
}

/// Once; and once more where somebody has no time any more.
void CoordinatorLink::hear(const End& end, TimePoint) {
  // To whom this node is none of the job's grants it a word that was void when it was heard.
  if (void_leave_ && end.verdict == verdict_of(*void_leave_)) return void_leave_.reset();
  if (ending_ && (kill_told_ || !end.verdict.kill_now)) return;
  kill_told_ = end.verdict.kill_now;
  hang_up_attempt();
  ending_ = true;
  leave_until_.reset();
  tell(end);
}

void CoordinatorLink::hear(const Waiting& waiting, TimePoint) { tell(waiting); }

void CoordinatorLink::hear(const Examine& examine, TimePoint) {
  if (!runs() || ending_) return;
  if (examine.arrivals_only) {
    arrivals_asked_ = true;
  } else {
    examined_ = examine.number;
  }
  tell(examine);
}

void CoordinatorLink::hear(const HangTold& told, TimePoint) {
  if (runs() && !ending_) tell(told);
}

void CoordinatorLink::hear(const Ask& ask, TimePoint) {
  if (!is_member()) return;
  if (asked_.size() >= open_questions_max) {
    return write(Answer{.number = ask.number, .status = 503, .type = "text/plain", .body = "too many questions"});
  }
  asked_.insert(ask.number);
  tell(ask);
}

/// An order that ends the job is answered behind its End.
void CoordinatorLink::hear(const Answer& answer, TimePoint) {
  if (standing_.told) tell(answer);
}

void CoordinatorLink::forget_questions() {
  examined_.reset();
  arrivals_asked_ = false;
}

}  // namespace torchup
