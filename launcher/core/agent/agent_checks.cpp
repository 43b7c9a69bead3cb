#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "launcher/core/agent/agent.hpp"

/// What is looked at on this node before it joins, and what follows from it.
namespace torchup {

/// No worker of ours runs, and a Join is to follow: at once where nothing has to be looked at before it. The first time
/// everything is, later what may have changed: after workers of this node have failed, while it is unfit, and by a
/// health check before each Join.
void Agent::prepare() {
  const PreflightConfig& checks = config_.preflight;
  const bool first = look_ == 0;
  const bool again = failure_reported_ || !unfit_.empty();
  if (!restart_reason_.empty()) last_failure_ = restart_reason_;
  RunChecks run;
  run.level = first || again ? checks.level : PreflightLevel::off;
  run.health = !checks.health_check.empty();
  run.ask_gpus = run.level != PreflightLevel::off && (checks.gpus_asked ? !first : run.level == PreflightLevel::full);
  run.last_failure = last_failure_;
  if (run.level == PreflightLevel::off && !run.health) return join();
  run.number = ++look_;
  looked_at_all_ = run.level != PreflightLevel::off;
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
  for (const Finding& finding : event.findings) {
    if (std::ranges::find(found_, finding) != found_.end()) continue;  // told by the last look
    tell(finding);
  }
  // What the ways between nodes said of this one is not looked at here: it stays.
  std::erase_if(found_, [this](const Finding& finding) {
    return looked_at_all_ ? finding.check != Check::pairs : finding.check == Check::health;
  });
  found_.insert(found_.end(), event.findings.begin(), event.findings.end());
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
         compared_in_ != placement.membership_changes;
}

void Agent::compare(const Placed& message) {
  compared_in_ = message.placement.membership_changes;
  place_compared_ = message;
  phase_ = Phase::comparing;
  act(CompareNodes{message.placement, found_});
}

void Agent::on(const NodesCompared& event) {
  if (phase_ != Phase::comparing) return;
  if (config_.preflight.only) {
    if (event.exit_code != 0) return end_job(event.exit_code, event.reason);
    return act(Send{WorkersSucceeded{place_compared_.placement.round}});
  }
  if (!event.problem.empty()) {
    record(event::Warning{"preflight: the ways between the nodes were not tried: " + event.problem});
  }
  // The last comparison's count no more, and are told again only where they say something else.
  const std::vector<Finding> known = found_;
  std::erase_if(found_, [](const Finding& finding) { return finding.check == Check::clock; });
  for (const Finding& finding : event.own) {
    if (std::ranges::find(known, finding) == known.end()) tell(finding);
  }
  found_.insert(found_.end(), event.own.begin(), event.own.end());
  if (const std::string reason = unfit_reason(event.own); !reason.empty()) {
    unfit_ = reason;
    record(event::NodeUnfit{identity_.host, reason});
    return join();  // by which it gives its place up
  }
  if (event.others_unfit) return;  // the round ends as soon as they have said so
  phase_ = Phase::joining;
  obey(place_compared_);
}

void Agent::tell(const Finding& finding) {
  record(event::Preflight{std::string{to_text(finding.check)}, std::string{to_text(finding.level)}, line_of(finding)});
}

}  // namespace torchup
