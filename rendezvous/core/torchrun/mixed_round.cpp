#include "rendezvous/core/torchrun/mixed_round.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/link/message_bytes.hpp"
#include "rendezvous/core/torchrun/torchrun_part.hpp"

namespace torchup {
namespace {

/// How long after a worker's failure another node's change may still show up as its cause: torchrun's agents look at
/// their workers each 100 ms, and stop them before they leave.
constexpr Duration doubt_limit = std::chrono::milliseconds{400};

constexpr const char* closed_by_others = "the rendezvous was closed by another node, whose workers have failed";

}  // namespace

bool MixedRound::over(Id id) const {
  const auto found = agents_.find(id);
  return found == agents_.end() || found->second.stage == Stage::over;
}

Round MixedRound::round(Id id) const {
  const auto found = agents_.find(id);
  return Round{found == agents_.end() ? 0 : std::max<std::int64_t>(found->second.round, 0)};
}

std::optional<TorchrunNode> MixedRound::name(Id id) const {
  const auto found = agents_.find(id);
  return found == agents_.end() ? std::nullopt : found->second.node;
}

void MixedRound::set_aside(Id id, bool aside) {
  const auto found = agents_.find(id);
  if (found != agents_.end() && std::exchange(found->second.aside, aside) != aside) said_ = true;
}

void MixedRound::slept(TimePoint now, Duration patience) {
  for (auto& [id, agent] : agents_) {
    agent.until = std::max(agent.until, now + (agent.stage == Stage::doubting ? doubt_limit : patience));
  }
  meeting_.slept(now);
}

std::size_t MixedRound::held_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [id, agent] : agents_) {
    bytes += torchup::held_bytes(agent.join);
    if (agent.failed) bytes += torchup::held_bytes(agent.failed->failures);
    if (agent.leave) bytes += text_bytes(agent.leave->reason) + torchup::held_bytes(agent.leave->failures);
  }
  return bytes;
}

// ---- what agents say

void MixedRound::said(Id id, const AgentMessage& message, TimePoint now) {
  const auto found = agents_.find(id);
  if (found == agents_.end() || found->second.stage == Stage::over) return;
  now_ = now;
  said_ = true;
  std::visit([&](const auto& word) { said(found->second, word); }, message);
}

void MixedRound::said(Agent& agent, const Join& join) {
  agent.join = join;
  agent.stage = Stage::wants_in;
  agent.until = now_ + join.terms.join_timeout;
  terms_ = join.terms;
}

void MixedRound::said(Agent& agent, const WorkersFailed& failed) {
  if (agent.stage != Stage::running || failed.round.value() != agent.round || failed.failures.empty()) return;
  agent.failed = failed;
  agent.stage = Stage::doubting;
  agent.until = now_ + (members_.size() > 1 ? doubt_limit : Duration::zero());
}

void MixedRound::said(Agent& agent, const WorkersSucceeded& succeeded) {
  if (agent.stage != Stage::running || succeeded.round.value() != agent.round) return;
  agent.stage = Stage::succeeded;
  agent.until = now_ + barrier_limit;
}

// ---- one turn

Result<std::vector<MixedParts::Told>> MixedRound::turn(TorchrunStore& store, TimePoint now, UtcTime utc) {
  if (concluded_ || (!std::exchange(said_, false) && turn_at_ && now < *turn_at_)) return std::vector<Told>{};
  turn_at_ = now + busy_pace;
  now_ = now;
  const Turn turn{store, *store.owner(), utc};
  if (auto read = turn.care.look(store); !read) return read.error();
  for (const auto step :
       {&MixedRound::take_leaves, &MixedRound::leave_together, &MixedRound::hear_closed, &MixedRound::watch,
        &MixedRound::project, &MixedRound::seat, &MixedRound::meet, &MixedRound::wait}) {
    if (auto done = (this->*step)(turn); !done) return done.error();
    if (concluded_) break;
  }
  std::erase_if(agents_, [](const auto& entry) { return entry.second.stage == Stage::over; });
  return std::exchange(told_, {});
}

bool MixedRound::any(Stage stage) const {
  return std::ranges::any_of(agents_, [&](const auto& entry) { return entry.second.stage == stage; });
}

/// One that ends the job for all, or those that go alone.
Result<> MixedRound::take_leaves(const Turn& turn) {
  for (auto& [id, agent] : agents_) {
    if (!agent.leave || agent.stage == Stage::over) continue;
    if (!agent.leave->ends_job) {
      agent.stage = Stage::leaving;
      continue;
    }
    const Verdict verdict = verdict_of(*agent.leave);
    if (auto closed = turn.care.close(turn.store); !closed) return closed;
    if (verdict.exit_code != 0) return conclude(verdict), Result<>{};
    end(id, agent, verdict);
  }
  return {};
}

/// The exit barrier: each counts itself once, and all wait until the last one has come.
Result<> MixedRound::leave_together(const Turn& turn) {
  if (!any(Stage::succeeded)) return {};
  bool waited_enough = false;
  for (auto& [id, agent] : agents_) {
    if (agent.stage != Stage::succeeded) continue;
    waited_enough = waited_enough || now_ > agent.until;
    if (std::exchange(agent.counted_out, true)) continue;
    auto count = turn.store.add(round_key(torchrun_key::barrier_count, round_), 1);
    if (!count) return count.error();
    if (*count != static_cast<std::int64_t>(members_.size())) continue;
    if (auto set = turn.store.set(round_key(torchrun_key::barrier_open, round_), "<val_ignored>"); !set) return set;
  }
  auto open = turn.store.find(round_key(torchrun_key::barrier_open, round_));
  if (!open) return open.error();
  if (!*open && !waited_enough) return {};
  if (auto closed = turn.care.close(turn.store); !closed) return closed;
  for (auto& [id, agent] : agents_) {
    if (agent.stage == Stage::succeeded) end(id, agent, {.exit_code = 0, .reason = "all workers exited 0"});
  }
  return {};
}

/// Who stands by is released when the others succeed: they meet at the exit barrier, then close the rendezvous. Who
/// comes when all is over has stood by for nobody.
Result<> MixedRound::hear_closed(const Turn& turn) {
  if (!turn.state().closed) return {};
  auto open = turn.store.find(round_key(torchrun_key::barrier_open, turn.state().round));
  if (!open) return open.error();
  for (auto& [id, agent] : agents_) {
    const bool stood_by = agent.stage == Stage::wants_in && !agent.roster.empty() &&
                          !(agent.node && turn.state().participants.contains(*agent.node));
    if (*open && stood_by) end(id, agent, {.exit_code = 0, .reason = "the job has ended well; this node stood by"});
  }
  if (any(Stage::running) || any(Stage::doubting) || any(Stage::succeeded)) return fail(closed_by_others), Result<>{};
  if (any(Stage::meeting)) return fail("the rendezvous was closed by another node"), Result<>{};
  if (any(Stage::wants_in)) fail(fmt::format("the rendezvous of job {} is closed", run_id_.value()));
  return {};
}

// ---- in a round

bool MixedRound::goes_on(const Agent& agent, const TorchrunState& state) const {
  return state.complete && state.round == agent.round && state.participants.contains(*agent.node);
}

/// Why this round cannot go on; empty: it can. The store's owner alone judges that, and calls all by the wait list.
std::string MixedRound::change(const TorchrunState& state) const {
  if (!state.complete || state.round != round_) return "the others have left the round";
  if (state.wait_list.empty()) return {};
  std::vector<TorchrunNode> gone, newcomers;
  std::ranges::copy_if(members_, std::back_inserter(gone),
                       [&](const TorchrunNode& node) { return !state.participants.contains(node); });
  if (!gone.empty()) return fmt::format("node {} has left the round", shown(gone));
  std::ranges::copy_if(state.wait_list, std::back_inserter(newcomers),
                       [](const TorchrunNode& node) { return !is_caller(node); });
  return newcomers.empty() ? "another round was called for" : "joining: " + shown(newcomers);
}

/// All of ours are told to stop at one moment: when torchrun's agents have seen that another round is called, too.
Result<> MixedRound::watch(const Turn& turn) {
  if (!any(Stage::running) && !any(Stage::doubting)) return {};
  const std::string why = change(turn.state());
  bool called = false;
  if (!why.empty()) {
    auto leaving = turn.store.find(round_key(torchrun_key::barrier_count, round_));
    if (!leaving) return leaving.error();
    called = !*leaving && turn.care.all_know();  // the exit barrier nobody leaves again
  }
  for (auto& [id, agent] : agents_) {
    const bool out = agent.node && !goes_on(agent, turn.state());
    const std::string reason = out && why.empty() ? "the others have left the round" : why;
    if (agent.stage == Stage::doubting && !reason.empty()) {
      stop(id, agent, StopCause::membership_change, reason + "; the failure here is taken for its effect");
    } else if (agent.stage == Stage::running && (out || called)) {
      stop(id, agent, StopCause::membership_change, reason);
    }
  }
  return decide_failure(turn);
}

/// Of several that have failed, the first one.
Result<> MixedRound::decide_failure(const Turn& turn) {
  auto first = agents_.end();
  for (auto it = agents_.begin(); it != agents_.end(); ++it) {
    if (it->second.stage != Stage::doubting || now_ < it->second.until) continue;
    if (first == agents_.end() || it->second.until < first->second.until) first = it;
  }
  if (first == agents_.end()) return {};
  Agent& agent = first->second;
  const std::string cause =
      fmt::format("rank {} failed", agent.failed->failures[root_cause(agent.failed->failures)].rank.value());
  const bool again = agent.failed->may_restart && agent.restarts.spend(agent.join.terms, now_);
  if (!again) {  // without us nobody's workers get anywhere
    const bool used_up = agent.join.terms.max_restarts > 0;
    return close(turn, {.exit_code = 1,
                        .reason = cause + (used_up ? "; all restarts of this node are used up" : ""),
                        .failures = agent.failed->failures});
  }
  stop(first->first, agent, StopCause::worker_failure,
       fmt::format("{}; restart {} of {} of this node", cause, agent.restarts.used(agent.join.terms, now_),
                   agent.join.terms.max_restarts));
  agent.just_counted = true;
  for (auto& [id, other] : agents_) {
    if (other.stage != Stage::doubting) continue;
    stop(id, other, StopCause::membership_change,
         fmt::format("node {} restarts its workers; the failure here is taken for its effect", agent.address));
  }
  return {};
}

void MixedRound::stop(Id id, Agent& agent, StopCause cause, const std::string& reason) {
  agent.stage = Stage::stopping;
  if (cause == StopCause::membership_change) ++agent.membership_changes;
  agent.just_counted = false;
  tell(id, StopWorkers{Round{agent.round}, cause, reason});
}

// ---- into a round

/// Where a round does without a node that was lost too often lately, it waits.
bool MixedRound::stays_out(const Agent& agent, const TorchrunState& state) const {
  if (!agent.aside || agent.stage != Stage::wants_in || (agent.node && has_node(state, *agent.node))) return false;
  return state.complete || static_cast<int>(state.participants.size()) >= terms_.min_nodes;
}

Result<> MixedRound::project(const Turn& turn) {
  const TorchrunState& state = turn.state();
  std::vector<OurNode> ours;
  for (const bool aside : {false, true}) {  // those aside come last
    for (auto& [id, agent] : agents_) {
      if (agent.stage == Stage::idle || agent.stage == Stage::over || agent.aside != aside) continue;
      if (agent.stage == Stage::wants_in && !agent.node) {
        agent.node = our_node(agent.address, agent.pid, id, state.complete || state.round > 0);
      }
      if (!agent.node || stays_out(agent, state)) continue;
      const auto stage = agent.stage == Stage::wants_in    ? OurNode::Stage::wants_in
                         : agent.stage == Stage::stopping  ? OurNode::Stage::stops
                         : agent.stage == Stage::succeeded ? OurNode::Stage::succeeded
                         : agent.stage == Stage::leaving   ? OurNode::Stage::leaves
                                                           : OurNode::Stage::in_round;
      ours.push_back({*agent.node, stage, agent.round});
    }
  }
  if (auto done = turn.care.project(ours, terms_, turn.store, turn.utc); !done) return done;
  for (auto& [id, agent] : agents_) {
    if (agent.stage == Stage::leaving) end(id, agent, verdict_of(*agent.leave));
  }
  return {};
}

/// A round is complete: ours that wait have a place in it.
Result<> MixedRound::seat(const Turn& turn) {
  const TorchrunState& state = turn.state();
  if (!state.complete || state.closed) return {};
  std::vector<Agent*> seated;
  for (auto& [id, agent] : agents_) {
    if (agent.stage != Stage::wants_in || !agent.node || agent.round == state.round) continue;
    if (state.participants.contains(*agent.node)) seated.push_back(&agent);
  }
  if (seated.empty()) return {};
  for (Agent* const agent : seated) agent->round = state.round;
  auto nodes = by_group_rank(state);
  if (!nodes) return {};  // into the next round, which whoever completes it numbers anew
  const bool lost_one =
      std::ranges::any_of(members_, [&](const TorchrunNode& node) { return !state.participants.contains(node); });
  for (Agent* const agent : seated) {
    if (std::exchange(agent->just_counted, false) && lost_one) {
      agent->restarts.give_back();
      ++agent->membership_changes;
    }
    agent->stage = Stage::meeting;
    agent->group_rank = static_cast<int>(state.participants.at(*agent->node));
    agent->counted_out = false;
    agent->failed.reset();
    agent->roster.clear();
  }
  round_ = state.round;
  members_ = *std::move(nodes);
  meeting_.begin(round_, members_, now_);
  return {};
}

Result<> MixedRound::meet(const Turn& turn) {
  std::vector<MixedMeeting::Guest> guests;
  for (auto& [id, agent] : agents_) {
    if (agent.stage != Stage::meeting) continue;
    if (goes_on(agent, turn.state())) {
      guests.push_back({id, agent.group_rank, &agent.join, agent.address, agent.store});
    } else {
      agent.stage = Stage::wants_in;  // no worker of ours has started
    }
  }
  if (guests.empty()) return {};
  auto outcome = meeting_.turn(turn.store, guests, now_);
  if (!outcome) return outcome.error();
  if (outcome->failure) return close(turn, {.exit_code = 1, .reason = *std::move(outcome->failure)});
  if (outcome->to_open_store) tell(*outcome->to_open_store, HostStore{Round{round_}});
  for (auto& [id, place] : outcome->places) {
    Agent& agent = agents_.at(id);
    place.restart_count = agent.restarts.count();
    place.membership_changes = agent.membership_changes;
    agent.stage = Stage::running;
    tell(id, Placed{std::move(place), false});
  }
  return {};
}

/// Whoever is in no round yet is told for whom it waits, and not for ever.
Result<> MixedRound::wait(const Turn& turn) {
  if (!any(Stage::wants_in)) return {};
  const TorchrunState& state = turn.state();
  std::vector<TorchrunNode> present;
  for (const auto& [node, rank] : state.participants) present.push_back(node);
  std::string here = fmt::format("{} of {}", present.size(), terms_.min_nodes);
  if (terms_.max_nodes != terms_.min_nodes) here += fmt::format(" to {}", terms_.max_nodes);
  here += " nodes among torchrun's agents";
  if (!present.empty()) here += ": " + shown(present);
  for (auto& [id, agent] : agents_) {
    if (agent.stage != Stage::wants_in) continue;
    tell_roster(id, agent, state, here);
    const bool spare = agent.node && state.redundancy_list.contains(*agent.node);
    if (now_ > agent.until && !spare && !stays_out(agent, state)) return give_up(turn, agent);
  }
  return {};
}

void MixedRound::tell_roster(Id id, Agent& agent, const TorchrunState& state, const std::string& here) {
  std::string text = here;
  if (stays_out(agent, state)) {
    text += "; this node was lost too often lately: it stands aside";
  } else if (state.redundancy_list.contains(*agent.node)) {
    text += "; this node is a spare";
  } else if (!state.participants.contains(*agent.node)) {
    text += "; this node waits for the next round";
  }
  if (text == agent.roster) return;
  agent.roster = text;
  tell(id, Waiting{std::move(text)});
}

// ---- the end

Result<> MixedRound::give_up(const Turn& turn, const Agent& waiting) {
  const Verdict verdict{.exit_code = exit_code::too_few,
                        .reason = "too few nodes within the join timeout: " + waiting.roster};
  std::vector<OurNode> all;
  for (const auto& [id, agent] : agents_) {
    if (agent.node && agent.stage != Stage::over) all.push_back({*agent.node, OurNode::Stage::leaves, agent.round});
  }
  if (auto left = turn.care.project(all, terms_, turn.store, turn.utc); !left) return left;
  conclude(verdict);
  return {};
}

Result<> MixedRound::close(const Turn& turn, Verdict verdict) {
  if (auto closed = turn.care.close(turn.store); !closed) return closed;
  conclude(verdict);
  return {};
}

void MixedRound::fail(std::string reason) {
  Verdict verdict{.exit_code = 1, .reason = std::move(reason)};
  for (const auto& [id, agent] : agents_) {
    if (agent.failed && verdict.failures.empty()) verdict.failures = agent.failed->failures;
  }
  conclude(verdict);
}

void MixedRound::conclude(const Verdict& verdict) {
  concluded_ = true;
  for (auto& [id, agent] : agents_) end(id, agent, verdict);
}

void MixedRound::end(Id id, Agent& agent, const Verdict& verdict) {
  if (std::exchange(agent.stage, Stage::over) != Stage::over) tell(id, End{verdict});
}

}  // namespace torchup
