#include "rendezvous/core/diagnosis/hang_verdict.hpp"

#include <algorithm>
#include <iterator>

#include "rendezvous/core/diagnosis/awaited_collective.hpp"
#include "rendezvous/core/diagnosis/program_frames.hpp"

namespace torchup {

std::string_view to_text(HangKind kind) {
  switch (kind) {
    case HangKind::debugged:
      return "debugged";
    case HangKind::mismatch:
      return "mismatch";
    case HangKind::raised:
      return "raised";
    case HangKind::stopped:
      return "stopped";
    case HangKind::stuck:
      return "stuck";
    case HangKind::busy:
      return "busy";
    case HangKind::order:
      return "order";
    case HangKind::network:
      return "network";
  }
  return "";
}

std::string_view to_text(HangAction action) {
  switch (action) {
    case HangAction::none:
      return "none";
    case HangAction::abort:
      return "abort";
    case HangAction::restart:
      return "restart";
  }
  return "";
}

HangDecision decision_for(HangKind kind, OnHang wanted, bool silence_given) {
  if (wanted == OnHang::report) return {};
  if (kind == HangKind::debugged) return {HangAction::none, HangSpared::debugged};
  if (kind == HangKind::busy && !silence_given) return {HangAction::none, HangSpared::busy};
  return {wanted == OnHang::abort ? HangAction::abort : HangAction::restart, HangSpared::nobody};
}

HangJudge::HangJudge(int world_size) : facts_(static_cast<std::size_t>(std::max(world_size, 0))), graph_{world_size} {}

void HangJudge::add(const RankLook& look) {
  if (look.rank.value() < 0 || static_cast<std::size_t>(look.rank.value()) >= facts_.size() || !look.seen) return;
  Facts& facts = facts_[static_cast<std::size_t>(look.rank.value())];
  if (facts.seen) return;
  const bool ended = has_ended(look);
  const bool in_collective = std::ranges::any_of(look.frames, is_in_collective);
  facts = {.seen = true,
           .ended = ended,
           .debugged = look.traced || look.debugged,
           .raised = look.raised_ns && !look.raised_consequence && !ended,
           .stopped = look.state == state_stopped,
           .moving = look.moving && !ended,
           .in_p2p = look.in_p2p,
           .in_collective = in_collective,
           .silent_in_collective = in_collective && !look.groups_known};
  if (look.beats > 0) last_step_ = std::max(last_step_.value_or(look.step), look.step);
  graph_.add(look);
}

HangJudge::Ranks HangJudge::ranks_where(const auto& holds) const {
  Ranks ranks;
  for (std::size_t i = 0; i < facts_.size(); ++i) {
    if (holds(facts_[i], static_cast<int>(i))) ranks.push_back(static_cast<int>(i));
  }
  return ranks;
}

/// In recv or send, of which nobody knows with whom.
bool HangJudge::in_unknown_call(int rank) const {
  const Facts& facts = facts_[static_cast<std::size_t>(rank)];
  return facts.in_p2p && !graph_.waits(rank) && !graph_.knows_peer(rank);
}

/// May be no root: it waits itself, as far as its stack tells, or has done what the others wait for.
bool HangJudge::is_weak(int rank) const {
  const Facts& facts = facts_[static_cast<std::size_t>(rank)];
  return facts.ended || facts.silent_in_collective || in_unknown_call(rank) || graph_.may_have_begun(rank);
}

bool HangJudge::is_root(int rank) const {
  if (!graph_.is_waited_for(rank) || graph_.waits(rank)) return false;
  return !graph_.may_have_begun(rank) || !graph_.is_in_call(rank);
}

HangVerdict HangJudge::verdict() {
  graph_.finish();
  HangVerdict verdict = decide();
  verdict.last_step = last_step_;
  std::vector<Rank> unseen;
  for (const int rank : ranks_where([](const Facts&facts, int) { return !facts.seen; })) unseen.emplace_back(rank);
  verdict.unseen = RankSet{std::move(unseen)};
  return verdict;
}

HangVerdict HangJudge::decide() {
  const Ranks debugged = ranks_where([](const Facts& facts, int) { return facts.debugged; });
  if (!debugged.empty()) return made(HangKind::debugged, debugged);
  if (auto mismatch = find_mismatch(graph_)) {
    HangVerdict verdict{.kind = HangKind::mismatch, .collective = std::move(mismatch->collective)};
    for (const int rank : mismatch->culprits) verdict.culprits.emplace_back(rank);
    return verdict;
  }
  const Ranks raised = ranks_where([](const Facts& facts, int) { return facts.raised; });
  if (!raised.empty()) return made(HangKind::raised, raised);
  if (auto roots = sure_roots()) return std::move(*roots);
  if (const Ranks circle = graph_.circles(); !circle.empty()) return made(HangKind::order, circle);
  if (auto roots = likely_roots()) return std::move(*roots);
  if (graph_.anything_unfinished()) return made(HangKind::network, {});
  return by_movement(left_over());
}

std::optional<HangVerdict> HangJudge::sure_roots() const {
  const Ranks roots =
      ranks_where([&](const Facts& facts, int rank) { return facts.seen && is_root(rank) && !is_weak(rank); });
  return roots.empty() ? std::nullopt : std::optional{by_movement(roots)};
}

std::optional<HangVerdict> HangJudge::likely_roots() const {
  if (!ranks_where([&](const Facts&, int rank) { return in_unknown_call(rank); }).empty()) {
    const Ranks others =
        ranks_where([&](const Facts& facts, int rank) { return facts.seen && !graph_.waits(rank) && !is_weak(rank); });
    if (!others.empty()) return by_movement(others);
  }
  const Ranks weak = ranks_where([&](const Facts& facts, int rank) { return facts.seen && is_root(rank); });
  if (!weak.empty()) return by_movement(weak);
  const Ranks unseen = ranks_where([&](const Facts&, int rank) { return is_root(rank); });
  if (!unseen.empty()) return by_movement(unseen);
  return std::nullopt;
}

/// Where nobody waits in a collective: who has ended well keeps nobody waiting, who makes a group waits for the others,
/// unless it is stopped, and of who was not seen nobody knows anything.
HangJudge::Ranks HangJudge::left_over() const {
  const auto lives = [](const Facts& facts) { return facts.seen && !facts.ended; };
  Ranks ranks =
      ranks_where([&](const Facts& facts, int) { return lives(facts) && (!facts.in_collective || facts.stopped); });
  if (ranks.empty()) ranks = ranks_where([&](const Facts& facts, int) { return lives(facts); });
  if (ranks.empty()) ranks = ranks_where([](const Facts& facts, int) { return !facts.seen; });
  return ranks;
}

HangVerdict HangJudge::by_movement(const Ranks& ranks) const {
  const auto of_them = [&](const auto& holds) {
    Ranks some;
    std::ranges::copy_if(ranks, std::back_inserter(some),
                         [&](int rank) { return holds(facts_[static_cast<std::size_t>(rank)]); });
    return some;
  };
  if (const Ranks stopped = of_them([](const Facts& facts) { return facts.stopped; }); !stopped.empty()) {
    return made(HangKind::stopped, stopped);
  }
  // Of a rank that was not seen nobody knows that it stands still.
  const Ranks still = of_them([](const Facts& facts) { return facts.seen && !facts.moving; });
  return still.empty() ? made(HangKind::busy, ranks) : made(HangKind::stuck, still);
}

std::vector<Rank> HangJudge::ended_by(const HangVerdict& verdict) const {
  const auto fact = [&](Rank rank) { return facts_.at(static_cast<std::size_t>(rank.value())); };
  const auto lives = [&](Rank rank) { return fact(rank).seen && !fact(rank).ended; };
  std::vector<Rank> ended;
  std::ranges::copy_if(verdict.culprits, std::back_inserter(ended), lives);
  // Who waits for a rank that has ended waits for ever.
  const bool too_late =
      ended.empty() && std::ranges::any_of(verdict.culprits, [&](Rank rank) { return fact(rank).ended; });
  if (verdict.kind != HangKind::network && !too_late) return ended;
  for (const int rank : ranks_where([](const Facts&facts, int) { return facts.seen && !facts.ended; })) {
    ended.emplace_back(rank);
  }
  return ended;
}

bool HangJudge::anybody_moves() const { return std::ranges::any_of(facts_, &Facts::moving); }

HangVerdict HangJudge::made(HangKind kind, const Ranks& culprits) const {
  HangVerdict verdict{.kind = kind, .collective = awaited_collective(graph_, culprits)};
  for (const int rank : culprits) verdict.culprits.emplace_back(rank);
  return verdict;
}

HangVerdict judge_hang(int world_size, std::span<const RankLook> looks) {
  HangJudge judge{world_size};
  for (const RankLook& look : looks) judge.add(look);
  return judge.verdict();
}

}  // namespace torchup
