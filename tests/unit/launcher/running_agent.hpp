#pragma once

#include <algorithm>
#include <csignal>
#include <vector>

#include "launcher/core/agent/agent.hpp"

/// An agent of two workers, and what to look for in its actions.
namespace torchup::agent_test {

using namespace std::chrono_literals;

inline constexpr TimePoint t0{};

inline LaunchConfig two_workers(int max_restarts = 0) {
  LaunchConfig config;
  config.local_world_size = 2;
  config.terms.max_restarts = max_restarts;
  config.end_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  config.forward_signals = {SIGUSR1, SIGUSR2};
  config.program.executable = "/bin/prog";
  config.preflight.level = PreflightLevel::off;  // agent_checks_test has it
  return config;
}

inline Placed placed(std::int64_t round = 0, int restart_count = 0) {
  Placed message;
  message.placement.round = Round{round};
  message.placement.world_size = 2;
  message.placement.restart_count = restart_count;
  return message;
}

template <class T>
const T* find(const std::vector<AgentAction>& actions) {
  for (const AgentAction& action : actions) {
    if (const T* found = std::get_if<T>(&action)) return found;
  }
  return nullptr;
}

template <class T>
const T* find_sent(const std::vector<AgentAction>& actions) {
  for (const AgentAction& action : actions) {
    const Send* sent = std::get_if<Send>(&action);
    if (const T* found = sent ? std::get_if<T>(&sent->message) : nullptr) return found;
  }
  return nullptr;
}

template <class T>
const T* find_event(const std::vector<AgentAction>& actions) {
  for (const AgentAction& action : actions) {
    const Record* record = std::get_if<Record>(&action);
    if (const T* found = record ? std::get_if<T>(&record->event) : nullptr) return found;
  }
  return nullptr;
}

/// What there is to do, the record apart.
inline std::size_t deeds(const std::vector<AgentAction>& actions) {
  return static_cast<std::size_t>(std::ranges::count_if(
      actions, [](const AgentAction& action) { return !std::holds_alternative<Record>(action); }));
}

inline WorkerEnded ended(int local_rank, int exit_code) {
  WorkerEnded event;
  event.local_rank = LocalRank{local_rank};
  event.exit_code = exit_code;
  return event;
}

inline const std::vector<LocalRank> both{LocalRank{0}, LocalRank{1}};

/// An agent whose two workers run, pids 100 and 101.
struct Running {
  explicit Running(LaunchConfig config = two_workers()) : agent{config, AgentIdentity{NodeId{"n"}, "host", {}, {}}} {
    static_cast<void>(agent.step(Begin{}, t0));
    static_cast<void>(agent.step(FromCoordinator{HostStore{Round{0}}}, t0));
    static_cast<void>(agent.step(StoreOpened{Round{0}, Port{4000}}, t0));
    started = agent.step(FromCoordinator{placed()}, t0);
    start();
  }
  void start() {
    static_cast<void>(agent.step(WorkerStarted{LocalRank{0}, 100}, t0));
    static_cast<void>(agent.step(WorkerStarted{LocalRank{1}, 101}, t0));
  }
  Agent agent;
  std::vector<AgentAction> started;
};

/// Steps of both workers: what their pages say.
inline StepsSeen steps(std::uint64_t beats, TimePoint last, bool saving = false) {
  StepsSeen seen;
  for (int i = 0; i < 2; ++i) {
    StepSample& sample = seen.samples.emplace_back();
    sample.rank = Rank{i};
    sample.local_rank = LocalRank{i};
    const auto ended = std::chrono::nanoseconds{last.time_since_epoch()}.count();
    sample.progress = WorkerProgress{.beats = beats, .step = static_cast<std::int64_t>(beats), .ended_ns = ended};
    if (saving && i == 1) sample.progress->saving_since_ns = 1;
    sample.signs = {.local_rank = LocalRank{i}, .watched = true, .beats = beats, .beat_ns = ended};
  }
  return seen;
}

inline Verdict verdict(int code) {
  Verdict result;
  result.exit_code = code;
  return result;
}

}  // namespace torchup::agent_test
