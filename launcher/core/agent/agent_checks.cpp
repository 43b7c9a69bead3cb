#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "launcher/core/agent/agent.hpp"
#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/text/names.hpp"

/// What is looked at on this node before it joins, and what follows from it.
namespace torchup {
namespace {

/// What only nodes that meet find.
bool is_of_comparison(const Finding& finding) {
  return finding.check == Check::clock || finding.check == Check::pairs || finding.check == Check::nccl;
}

}  // namespace

/// No worker of ours runs, and a Join is to follow: at once where nothing has to be looked at before it. The first time
/// everything is, later what may have changed: after workers of this node have failed, while it is unfit, and by a
/// health check before each Join.
void Agent::prepare() {
  look_again_at_.reset();
  const PreflightConfig& checks = config_.preflight;
  const bool first = look_ == 0;
  const bool again = failure_reported_ || !unfit_.empty();
  if (!restart_reason_.empty()) last_failure_ = cut_text(restart_reason_, last_failure_bytes_max);
  RunChecks run;
  run.level = first || again ? checks.level : PreflightLevel::off;
  run.health = !checks.health_check.empty();
  run.ask_gpus = run.level != PreflightLevel::off && (checks.gpus_asked ? !first : run.level == PreflightLevel::full);
  run.ways = std::ranges::any_of(found_, is_of_ways) && now_ >= ways_due_;
  run.last_failure = last_failure_;
  if (run.level == PreflightLevel::off && !run.health) return join();
  run.number = ++look_;
  last_look_ = run;
  // Quick checks of anything but GPUs warn only, and so nobody waits for them.
  const bool may_be_unfit = run.health || run.level == PreflightLevel::full || run.ask_gpus || !unfit_.empty() ||
                            std::ranges::any_of(checks.gpus_found.facts, &GpuFacts::lost);
  if (may_be_unfit) {
    phase_ = Phase::checking;
    deadline_.reset();
  }
  act(std::move(run));
  if (!may_be_unfit) join();
}

void Agent::on(const ChecksDone& event) {
  if (event.number != look_) return;
  // Ways that are as bad as before have other rates each time: that is no news.
  const bool as_bad = std::ranges::any_of(found_, is_of_ways) && std::ranges::any_of(event.findings, is_of_ways);
  std::vector<Finding> findings = event.findings;
  if (as_bad) std::erase_if(findings, is_of_ways);
  tell_news(findings);
  std::erase_if(found_, [&](const Finding& finding) {
    if (is_of_ways(finding)) return last_look_.ways && !as_bad;
    if (is_of_comparison(finding)) return false;
    return last_look_.level != PreflightLevel::off || finding.check == Check::health;
  });
  for (const Finding& finding : findings) {
    if (std::ranges::find(found_, finding) == found_.end()) found_.push_back(finding);
  }
  if (phase_ != Phase::checking) return;
  phase_ = Phase::joining;
  std::string reason = config_.preflight.only ? "" : unfit_reason(found_);
  if (!reason.empty() && reason != unfit_) record(event::NodeUnfit{identity_.host, reason});
  if (reason.empty() && !unfit_.empty()) {
    record(event::Notice{fmt::format("{} is fit again", identity_.host), LogLevel::info});
  }
  unfit_ = std::move(reason);
  // Alone, or among torchrun's agents, nobody is there who would do without it.
  if (!unfit_.empty() && (config_.one_node() || foreign_)) {
    return end_job(unfit_code, "this node is unfit: " + unfit_);
  }
  join();
}

/// Whether the nodes of a round meet to compare themselves before anything else: where that is all there is to do, and
/// where the ways between them are others than those that were tried last.
bool Agent::is_to_compare(const Placement& placement) const {
  if (config_.preflight.only) return true;
  const bool ours = config_.share_store && !foreign_;  // they compare through the round's store
  return ours && config_.preflight.level == PreflightLevel::full && placement.group_world_size > 1 &&
         compared_in_ != placement.membership_changes && compared_in_vain_ < comparing_in_vain_max;
}

void Agent::compare(const Placed& message) {
  compared_in_ = message.placement.membership_changes;
  place_compared_ = message;
  comparing_since_ = now_;
  phase_ = Phase::comparing;
  deadline_ = now_ + (config_.preflight.only ? comparison_limit : job_comparison_limit) + comparison_slack;
  act(CompareNodes{message.placement, found_});
}

/// No answer has come in time, or the node that the comparison condemns does not know of it.
void Agent::comparison_due() {
  const std::string problem = "the comparison of the nodes has not ended in time";
  if (config_.preflight.only) return end_job(exit_code::unreachable, problem);
  act(CancelChecks{});
  compared_in_vain_ += now_ - comparing_since_;
  record(event::Warning{"preflight: " + problem});
  phase_ = Phase::joining;
  obey(place_compared_);
}

void Agent::on(const NodesCompared& event) {
  if (phase_ != Phase::comparing) return;
  deadline_.reset();
  if (config_.preflight.only) {
    if (event.exit_code != 0) return end_job(event.exit_code, event.reason);
    return act(Send{WorkersSucceeded{place_compared_.placement.round}});
  }
  if (!event.problem.empty()) {
    compared_in_vain_ += now_ - comparing_since_;
    record(event::Warning{"preflight: the ways between the nodes were not tried: " + event.problem});
  } else {
    tell_news(event.own);
    std::erase_if(found_, is_of_comparison);
    found_.insert(found_.end(), event.own.begin(), event.own.end());
    if (std::ranges::none_of(event.own, is_of_ways)) condemned_by_ways_ = 0;
  }
  if (const std::string reason = unfit_reason(event.own); !reason.empty()) {
    unfit_ = reason;
    ways_due_ = now_ + std::min(unfit_look_interval * (1 << std::min(condemned_by_ways_++, 10)), ways_interval_max);
    record(event::NodeUnfit{identity_.host, reason});
    return join();  // by which it gives its place up
  }
  if (event.others_unfit) {
    deadline_ = now_ + condemned_patience;  // the round ends as soon as they have said so
    return;
  }
  phase_ = Phase::joining;
  obey(place_compared_);
}

/// Of those that the last look, or the last comparison, has not found.
void Agent::tell_news(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    if (std::ranges::find(found_, finding) != found_.end()) continue;
    record(event::Preflight{std::string{to_text(finding.check)}, std::string{to_text(finding.level)}, line_of(finding),
                            config_.preflight.only});
  }
}

/// No worker can run here, which is everybody's end: of a node that never joins the others would hear nothing. A
/// coordinator that knows no node without which there is no job has to be told.
void Agent::decline(const CoordinatorMessage& message) {
  const auto* const waiting = std::get_if<Waiting>(&message);
  if (waiting && waiting->of_link) return obey(*waiting);
  if (!waiting) return end_job(config_.gives_up_code, config_.gives_up);
  if (!decline_at_) decline_at_ = now_ + decline_patience;
}

}  // namespace torchup
