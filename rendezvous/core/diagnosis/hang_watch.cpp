#include "rendezvous/core/diagnosis/hang_watch.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/core/diagnosis/look_parts.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup {
std::vector<hang::Action> HangWatch::step(const hang::Event& event, TimePoint now) {
  std::visit([&](const auto& one) { on(one, now); }, event);
  judge_when_done(now);
  look_when_silent(now);
  return std::exchange(actions_, {});
}

std::optional<TimePoint> HangWatch::deadline() const { return look_ ? std::optional{look_->until} : std::nullopt; }

void HangWatch::on(const hang::AttemptBegins& event, TimePoint now) {
  on(hang::AttemptEnds{}, now);
  if (event.world_size < 1 || event.world_size > looked_ranks_max) return;
  world_size_ = event.world_size;
  for (const NodeRanks& ranks : event.nodes) agents_.try_emplace(ranks.node, Agent{.ranks = ranks});
  untold_ = agents_.size();
}

void HangWatch::on(const hang::AttemptEnds&, TimePoint) {
  if (look_) actions_.emplace_back(hang::Void{look_->number, "the attempt has ended"});
  look_.reset();
  told_.reset();
  agents_.clear();
  tally_ = {};
  untold_ = unanswered_ = 0;
  world_size_ = 0;
  next_silence_ = Duration{0};
  acts_until_.reset();
  doubted_ = false;
}

void HangWatch::on(const hang::Reported& event, TimePoint now) {
  const auto agent = agents_.find(event.node);
  if (agent == agents_.end()) return;
  ProgressReport report = event.report;
  report.silence = std::clamp(report.silence, Duration{0}, duration_max);
  if (agent->second.report && report.silence < agent->second.report->silence) {
    note_progress(agent->second, report, now);
  }
  agent->second.report ? tally_.remove(*agent->second.report) : void(--untold_);
  tally_.add(report);
  agent->second.report = report;
  agent->second.reported = now;
}

void HangWatch::note_progress(Agent& agent, const ProgressReport& report, TimePoint now) {
  if (look_) look_->progress = true;
  next_silence_ = Duration{0};
  doubted_ = false;
  if (!told_) return;
  // Since the report before, silence has gone on until the progress.
  const Duration since = std::max(Duration{0}, now - agent.reported - report.silence);
  const Duration after = std::max(told_->silence, agent.report->silence + since);
  actions_.emplace_back(hang::Over{told_->number, after});
  told_.reset();
}

void HangWatch::on(const hang::Gone& event, TimePoint) {
  const auto agent = agents_.find(event.node);
  if (agent == agents_.end()) return;
  agent->second.report ? tally_.remove(*agent->second.report) : void(--untold_);
  if (agent->second.parts_left > 0) --unanswered_;
  agents_.erase(agent);
  if (!look_ || !agents_.empty()) return;
  actions_.emplace_back(hang::Void{look_->number, "no agent is left"});
  look_.reset();
}

void HangWatch::on(const hang::Answered& event, TimePoint now) {
  const auto agent = agents_.find(event.node);
  if (!look_ || event.number != look_->number || agent == agents_.end()) return;
  std::size_t& parts_left = agent->second.parts_left;
  if (parts_left == 0) return;
  const auto added = look_->looks.add(agent->second.ranks, event.part);
  // Who says what cannot be understood has said all that can be.
  parts_left = event.last || !added ? 0 : parts_left - 1;
  if (parts_left == 0) --unanswered_;
  look_->late = look_->late || (agents_.size() > 1 && now - look_->begun > look_answer_limit);
}

void HangWatch::on(const hang::Asked&, TimePoint now) {
  if (agents_.empty()) return;
  if (!look_) return begin_look(true, Duration{0}, now);
  look_->asked = true;
  look_->until = std::min(look_->until, now + asked_look_wait_max);
}

void HangWatch::on(const hang::Wake&, TimePoint) {}

void HangWatch::begin_look(bool asked, Duration silence, TimePoint now) {
  look_ = Look{.number = looks_++,
               .begun = now,
               .until = now + (asked ? asked_look_wait_max : look_wait_max),
               .silence = silence,
               .asked = asked,
               .hang = !asked,
               .looks = GatheredLooks{world_size_}};
  for (auto& [_, agent] : agents_) agent.parts_left = look_parts_max(agent.ranks.workers);
  unanswered_ = agents_.size();
  actions_.emplace_back(hang::Examine{look_->number, asked});
}

void HangWatch::look_when_silent(TimePoint now) {
  if (look_ || agents_.empty() || (acts_until_ && now < *acts_until_)) return;
  // Who has not told of itself may have the newest progress of all: an agent that has just come back, or an old one.
  if (untold_ > 0) return;
  const auto limit = tally_.limit(settings_.timeout);
  const Duration silence = tally_.least_silence(settings_.timeout);
  if (limit && silence > *limit && silence >= next_silence_) begin_look(false, silence, now);
}

bool HangWatch::is_done(TimePoint now) const {
  return now >= look_->until || (unanswered_ == 0 && (look_->asked || !look_->late));
}

void HangWatch::judge_when_done(TimePoint now) {
  if (!look_ || !is_done(now)) return;
  Look look = std::move(*look_);
  look_.reset();
  // A person had no time to wait for all: what was seen of some is shown, and the hang is looked at anew.
  const bool cut_short = unanswered_ > 0 && now < look.begun + look_wait_max;
  if (look.hang && look.asked && cut_short) look.hang = false;
  unanswered_ = 0;
  for (auto& [_, agent] : agents_) agent.parts_left = 0;
  judge(look, now);
}

void HangWatch::judge(const Look& look, TimePoint now) {
  if (look.hang) next_silence_ = look.progress ? Duration{0} : 2 * look.silence;
  const bool is_void = look.progress || look.looks.progressed();
  if (is_void) doubted_ = false;
  if (is_void && !look.asked) {
    actions_.emplace_back(hang::Void{look.number, "a rank has made progress"});
    return;
  }
  hang::Found found{.number = found_++, .asked = look.asked && (is_void || !look.hang), .silence = look.silence};
  if (!is_void) {
    HangJudge judge{world_size_};
    for (int rank = 0; rank < world_size_; ++rank) {
      if (const auto one = look.looks.look(Rank{rank})) judge.add(*one);
    }
    found.verdict = judge.verdict();
    if (!found.asked) {
      told_ = Told{found.number, look.silence};
      decide(found, judge, now);
    }
  }
  found.looks = told_looks(look, found.verdict ? found.verdict->culprits : std::vector<Rank>{});
  actions_.emplace_back(std::move(found));
}

/// The one place where it is decided what is done about a hang, and to whom.
void HangWatch::decide(hang::Found& found, const HangJudge& judge, TimePoint now) {
  const bool given = settings_.timeout.mode == HangTimeout::Mode::given;
  HangDecision decision = decision_for(found.verdict->kind, settings_.on_hang, given);
  std::vector<Rank> ended = judge.ended_by(*found.verdict);
  const bool doubtful = found.verdict->kind == HangKind::network && judge.anybody_moves();
  if (decision.action != HangAction::none) {
    if (!settings_.may_act)
      decision = {HangAction::none, HangSpared::foreign};
    else if (ended.empty())
      decision = {HangAction::none, HangSpared::unseen};
    else if (doubtful && !doubted_)
      decision = {HangAction::none, HangSpared::doubtful};
  }
  doubted_ = doubtful;
  found.action = decision.action;
  found.spared = decision.spared;
  if (decision.action == HangAction::none) return;
  found.ended = std::move(ended);
  acts_until_ = now + action_patience;
}

std::vector<RankLook> HangWatch::told_looks(const Look& look, const std::vector<Rank>& culprits) const {
  std::vector<Rank> told{culprits.begin(),
                         culprits.begin() + static_cast<std::ptrdiff_t>(std::min(culprits.size(), told_looks_max))};
  for (int rank = 0; rank < world_size_ && told.size() < told_looks_max; ++rank) {
    if (!std::ranges::binary_search(culprits, Rank{rank})) told.emplace_back(rank);
  }
  std::ranges::sort(told);
  std::vector<RankLook> looks;
  for (const Rank rank : told) {
    auto one = look.looks.look(rank);
    looks.push_back(one ? std::move(*one) : RankLook{.rank = rank});
  }
  for (const auto& [_, agent] : agents_) {
    const int first = agent.ranks.first_rank.value();
    auto at = std::ranges::lower_bound(looks, Rank{first}, {}, &RankLook::rank);
    for (; at != looks.end() && at->rank.value() < first + agent.ranks.workers; ++at) {
      at->local_rank = LocalRank{at->rank.value() - first};
      at->host = agent.ranks.host;
    }
  }
  return looks;
}

}  // namespace torchup
