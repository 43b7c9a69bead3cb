// The round machine: what people see of it.
#include "rendezvous/core/round/rendezvous.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/core/membership/same_world.hpp"
#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/core/text/names.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {

std::string Rendezvous::roster(TimePoint now) const {
  if (!terms_) return "no node yet";
  std::vector<std::string> here, stopping, quiet, drained, unfit, missing, refused;
  for (const auto& [node, slot] : members_.slots()) {
    const Member& member = members_.at(slot);
    const auto& host = member.join->host;
    if (members_.silent(member, now)) {
      quiet.push_back(host + " (for " + seconds(now - member.alive_at) + ")");
    } else if (member.stage == Stage::ready && member.drained) {
      drained.push_back(host);
    } else if (member.stage == Stage::ready && !member.is_fit()) {
      unfit.push_back(fmt::format("{}: unfit: {}", host, cut_text(member.join->unfit, refusal_told_bytes_max)));
    } else {
      (member.stage == Stage::stopping ? stopping : here).push_back(host);
    }
  }
  for (const std::string& host : expected_hosts_) {
    if (!members_.has_host(host) && !refusals_.contains(host)) missing.push_back(host);
  }
  for (const auto& [host, why] : refusals_) {
    const std::string_view line = std::string_view{why}.substr(0, why.find('\n'));
    refused.push_back(fmt::format("{} ({})", host, cut_text(line, refusal_told_bytes_max)));
  }
  for (auto* names : {&here, &stopping, &quiet, &drained, &unfit}) {
    const std::size_t told = std::min(names->size(), names_joined_max);
    std::partial_sort(names->begin(), names->begin() + static_cast<std::ptrdiff_t>(told), names->end(), natural_less);
  }
  std::string text = std::to_string(here.size()) + " of " + nodes_wanted(range().min_nodes, range().max_nodes);
  if (!here.empty()) text += ": " + join_names(here);
  if (!stopping.empty()) text += "; stopping their workers: " + join_names(stopping);
  if (!quiet.empty()) text += "; silent: " + join_names(quiet);
  if (!drained.empty()) text += "; drained: " + join_names(drained);
  if (!unfit.empty()) text += "; " + join_names(unfit);
  if (!refused.empty()) text += "; refused: " + join_names(refused);
  if (!missing.empty()) text += "; not heard of: " + join_names(missing);
  if (phase_ == Phase::gathering && others_may_come_back(now)) {
    text += fmt::format("; this coordinator has just started: for {} it waits for nodes of a round that may be running",
                        seconds(patience_until_ ? patience(terms_) : settings_.redial));
  }
  return text;
}

const char* Rendezvous::phase_name(Phase phase) {
  static constexpr const char* names[] = {"gathering", "hosting", "running", "doubting", "restoring", "ended"};
  return names[static_cast<std::size_t>(phase)];
}

/// It had a place in the last round, and the one behind it is not there yet, or never will be.
bool Rendezvous::was_in_last_round(const Member& member) const {
  return (phase_ == Phase::gathering || phase_ == Phase::ended) && member.round &&
         member.round->value() + 1 == round_.value();
}

JobView Rendezvous::view(TimePoint now) const {
  static constexpr const char* stages[] = {"ready", "seated", "finished", "stopping"};
  const bool has_round = phase_ != Phase::gathering && phase_ != Phase::ended;
  const bool runs = has_round && phase_ != Phase::hosting;
  const JobRange nodes = terms_ ? range() : JobRange{0, 0};
  JobView view{.phase = phase_name(phase_),
               .round = round_,
               .min_nodes = nodes.min_nodes,
               .max_nodes = nodes.max_nodes,
               .restart_count = restarts_.count(),
               .membership_changes = membership_changes_,
               .max_restarts = terms_ ? terms_->max_restarts : 0,
               .world_size = has_round ? world_size_ : 0,
               .master = runs ? to_string(Endpoint{master_addr_, master_port_}) : std::string{},
               .waits_for = phase_ == Phase::gathering || members_.awaited() > 0 ? roster(now) : std::string{},
               .last = last_note_ ? to_text(*last_note_) : std::string{},
               .verdict = verdict_};
  for (const auto& [node, slot] : members_.slots()) {
    const Member& member = members_.at(slot);
    const bool quiet = members_.silent(member, now);
    auto& row = view.nodes.emplace_back(
        JobView::Node{.host = member.join->host, .local_world_size = member.join->local_world_size, .node = node});
    row.state = stages[static_cast<std::size_t>(member.stage)];
    if (member.stage == Stage::ready && runs) row.state = "standby";
    if (member.aside) row.state = "aside";
    if (member.stage == Stage::ready && !member.is_fit()) {
      row.state = "unfit";
      row.reason = member.join->unfit;
    }
    if (member.drained) row.state = member.stage == Stage::ready ? "drained" : "draining";
    if (quiet) row.state = "silent";
    if (quiet) row.reason = "for " + seconds(now - member.alive_at);
    // Until there is another round ranks are where they were: there their workers stop, and there lies what they have
    // written.
    if (member.in_round() || was_in_last_round(member)) row.first_rank = member.seat.first_rank;
    if (member.in_round()) row.group_rank = member.seat.group_rank;
  }
  for (const auto& [host, why] : refusals_) view.nodes.push_back({.host = host, .state = "refused", .reason = why});
  std::size_t missing = 0;
  for (const std::string& host : expected_hosts_) {
    if (members_.has_host(host) || refusals_.contains(host)) continue;
    if (++missing <= missing_shown_max) view.nodes.push_back({.host = host, .state = "missing"});
  }
  view.more_missing = missing - std::min(missing, missing_shown_max);
  return view;
}

void Rendezvous::arm_roster() {
  if (phase_ != Phase::gathering || roster_at_) return;
  // The line goes to every member: the more there are, the less often it may change.
  roster_at_ = roster_told_at_ + settings_.roster_interval * (1 + member_count() / 1000);
}

void Rendezvous::tell_roster(TimePoint now) {
  if (!roster_at_ || now < *roster_at_) return;
  roster_at_.reset();
  roster_told_at_ = now;
  // A node without which there was to be no job takes this for the word that there is none yet. It is told so when no
  // round can be running any more that we have not heard of: the line is another then.
  const bool may_have_begun = has_begun() || others_may_come_back(now);
  if (may_have_begun && !has_begun() && members_.missed() > 0) arm_roster();
  std::string text = roster(now);
  if (text == last_roster_) return;
  for (const auto& [node, slot] : members_.slots()) {
    const Member& member = members_.at(slot);
    if (member.stage == Stage::ready && !(may_have_begun && member.is_missed())) tell(member, Waiting{text});
  }
  note(RosterChanged{text});
  last_roster_ = std::move(text);
}

}  // namespace torchup
