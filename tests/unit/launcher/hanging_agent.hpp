#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/diagnosis/look_parts.hpp"
#include "rendezvous/core/diagnosis/told_parts.hpp"
#include "tests/unit/diagnosis/looks.hpp"
#include "tests/unit/launcher/running_agent.hpp"

/// An agent whose workers make no progress, and what it is told of that, for its tests.
namespace torchup::hanging_agent {

using namespace agent_test;

inline LaunchConfig given(Duration silence, int max_restarts = 0) {
  LaunchConfig config = two_workers(max_restarts);
  config.terms.hang_timeout = {HangTimeout::Mode::given, silence};
  return config;
}

inline std::optional<ProgressReport> report_in(const std::vector<AgentAction>& actions) {
  const auto* const action = find<ReportProgress>(actions);
  return action ? std::optional{action->report} : std::nullopt;
}

/// The silence that the agent reports after seconds of looks without news.
inline Duration silence_after(Agent& agent, TimePoint from, int seconds, bool saving = false) {
  Duration silence{0};
  for (int i = 1; i <= seconds; ++i) {
    silence = report_in(agent.step(steps(3, from, saving), from + std::chrono::seconds{i})).value().silence;
  }
  return silence;
}

inline FromCoordinator told(const DiagnosisNews& news) {
  const std::vector<std::string> parts = encode_news(news);
  REQUIRE(parts.size() == 1);
  return {HangTold{parts.front(), true}};
}

/// Rank `culprit` does not move, and the others wait for it.
inline hang::Found found(int culprit, HangAction action = HangAction::none, HangKind kind = HangKind::stuck) {
  hang::Found found;
  found.number = 4;
  found.silence = 64s;
  found.verdict = HangVerdict{.kind = kind, .culprits = looks::list({culprit}), .last_step = 7};
  found.action = action;
  if (action != HangAction::none) found.ended = looks::list({culprit});
  for (int rank = 0; rank < 2; ++rank) found.looks.push_back(looks::still(rank));
  return found;
}

inline const std::string summary = "No progress for 64 s, last step 7: rank 1 on nodea is stuck";

inline std::vector<Examined> examined(const std::vector<AgentAction>& actions) {
  std::vector<Examined> all;
  for (const AgentAction& action : actions) {
    const auto* const sent = std::get_if<Send>(&action);
    if (const auto* const one = sent ? std::get_if<Examined>(&sent->message) : nullptr) all.push_back(*one);
  }
  return all;
}

/// One of two nodes, whose ranks are 2 and 3.
struct SecondNode : Running {
  explicit SecondNode(LaunchConfig config = two_workers(1)) : Running{config} {
    static_cast<void>(
        agent.step(FromCoordinator{StopWorkers{Round{0}, StopCause::membership_change, "node b came"}}, t0));
    static_cast<void>(agent.step(ended(0, -SIGTERM), t0));
    static_cast<void>(agent.step(ended(1, -SIGTERM), t0));
    static_cast<void>(agent.step(DescendantsGone{}, t0));
    Placed message = placed(1);
    message.placement.group_rank = GroupRank{1};
    message.placement.group_world_size = 2;
    message.placement.first_rank = Rank{2};
    message.placement.world_size = 4;
    started = agent.step(FromCoordinator{message}, t0);
    start();
  }
};

}  // namespace torchup::hanging_agent
