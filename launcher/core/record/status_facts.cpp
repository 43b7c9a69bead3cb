#include "launcher/core/record/status_facts.hpp"

namespace torchup {
namespace {

struct Apply {
  StatusFacts& facts;
  TimePoint now;

  void operator()(const event::Waiting& e) const {
    if (e.of_link && facts.ranks > 0) return;  // the workers run on, and nothing would say that it is there again
    if (facts.waits_for.empty()) facts.waits_since = now;
    facts.waits_for = e.roster;
  }
  void operator()(const event::RoundCompleted& e) const {
    facts = {
        .ranks = e.placement.world_size, .nodes = e.placement.group_world_size, .restarts = e.placement.restart_count};
  }
  void operator()(const event::AttemptEnded&) const { facts = {}; }
  void operator()(const event::JobEnded&) const { facts = {}; }
  void operator()(const auto&) const {}
};

}  // namespace

void apply(StatusFacts& facts, const EventBody& event, TimePoint now) { std::visit(Apply{facts, now}, event); }

void see(StatusFacts& facts, const StepReport& steps) {
  if (facts.ranks == 0) return;
  facts.step = steps.most;
  facts.steps_per_second = static_cast<double>(steps.milli_per_second) / 1000;
}

}  // namespace torchup
