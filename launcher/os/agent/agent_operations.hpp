#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/agent/agent_events.hpp"
#include "launcher/core/agent/node_sight.hpp"
#include "launcher/core/ops/worker_tally.hpp"
#include "launcher/os/agent/hang_desk.hpp"
#include "launcher/os/agent/job_record.hpp"
#include "launcher/os/ops/node_service.hpp"
#include "rendezvous/net/agent/attach.hpp"

namespace torchup {

/// The agent's part in what people see of its job, and how they steer it: it tells the coordinator what its workers do
/// and what has happened to them, and answers at its doors (NodeService). Lives on the loop.
class AgentOperations {
 public:
  struct Hooks {
    std::function<AgentLink*()> link;               ///< null: there is none yet
    std::function<const AttemptOutput*()> attempt;  ///< likewise
    std::function<void(AgentEvent)> tell;
  };
  AgentOperations(asio::io_context& loop, const LaunchConfig& config, std::string host, pid_t launcher, Output& output,
                  JobRecord& job, HangDesk& desk, Hooks hooks);

  /// What the link must know, so that a coordinator in this process may be looked at and steered.
  void prepare(AttachSettings& settings);
  /// Opens the doors. Behind `prepare`.
  void open() { service_.open(); }

  /// True: that was for us.
  [[nodiscard]] bool takes(CoordinatorMessage& message);
  /// What the pages of all living workers say.
  void seen(const StepsSeen& steps);
  /// As JobRecord tells it.
  void happened(const LaunchEvent& event, std::string_view line);

  /// The attempt writes nothing more. While its output is there: who asks for it later is told what is remembered.
  void output_ended() { workers_.attempt_ended(); }

  /// The job has ended here: whoever follows it, or a worker's log, is told all of it and so.
  Task<> finish();
  /// As JobRecord wants it.
  Task<std::optional<JobRecord::WholeLedger>> whole_ledger();
  /// Nobody comes any more.
  void close() { service_.close(); }
  /// How long turns of the loop are.
  [[nodiscard]] TurnHistogram& turns() { return turns_; }

 private:
  [[nodiscard]] NodeServiceSettings service_settings(const std::string& host, pid_t launcher) const;
  [[nodiscard]] NodeService::Hooks service_hooks();
  [[nodiscard]] NodeReport report() const;
  void report_node();
  void note_way();
  void show(JobPage& page);
  [[nodiscard]] std::string metrics();
  void end_node(const std::string& by);
  [[nodiscard]] bool is_followed() const;
  [[nodiscard]] bool told_elsewhere(const EventBody& event) const;

  asio::io_context& loop_;
  const LaunchConfig& config_;
  const std::string host_;
  JobRecord& job_;
  const Hooks hooks_;
  TurnHistogram turns_;
  NodeSight sight_;
  WorkerTally tally_;
  WorkerDesk workers_;
  NodeService service_;
  CoordinatorOps* onlookers_ = nullptr;
  std::string waits_for_;
  std::optional<TimePoint> out_since_;  ///< the coordinator is out of reach
  std::optional<TimePoint> reported_at_;
};

}  // namespace torchup
