#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "launcher/core/rehearsal/rehearsal_report.hpp"

/// The nodes of --rehearse-nodes: which agents are started, and started again, and how the job came out by what all of
/// them have told. Pure; the shell is launcher/os/rehearsal/node_starter.
namespace torchup {

namespace cast {

// Events.

struct Begin {};
/// An agent has told something.
struct Told {
  int node = 0;
  RehearsalReport report = {};
};
/// An agent's process is gone, and all that it has told was heard.
struct Gone {
  int node = 0;
  int exit_code = 0;  ///< as a shell shows it
};
/// Somebody ends the job: no agent is started any more.
struct EndsAll {};
struct Wake {};
using Event = std::variant<Begin, Told, Gone, EndsAll, Wake>;

// Actions.

struct Start {
  int node = 0;
  std::optional<RehearsalStart> start = {};
  friend bool operator==(const Start&, const Start&) = default;
};
/// SIGTERM to this agent.
struct EndNode {
  int node = 0;
  friend bool operator==(const EndNode&, const EndNode&) = default;
};
/// Always the last one.
struct Finish {
  RehearsalResult result = {};
  friend bool operator==(const Finish&, const Finish&) = default;
};
using Action = std::variant<Start, EndNode, Finish>;

}  // namespace cast

class RehearsedNodes {
 public:
  RehearsedNodes(RehearsalScript script, int nodes);

  std::vector<cast::Action> step(const cast::Event& event, TimePoint now);
  [[nodiscard]] std::optional<TimePoint> deadline() const;

 private:
  struct Node {
    bool runs = false;
    bool placed = false;                         ///< since it was started last
    std::optional<RehearsalReport> leaves = {};  ///< a fault is about to end it
    std::optional<TimePoint> back_at = {};       ///< it is away until then
    std::optional<RehearsalStart> restart = {};  ///< for then
    std::optional<RehearsedJob> job = {};        ///< as it has seen it end
    bool ended = false;                          ///< by itself, not by a fault
    bool dismissed = false;                      ///< the job was over before it had a place
    int exit_code = 0;
  };

  void on(const cast::Begin& event, TimePoint now);
  void on(const cast::Told& event, TimePoint now);
  void on(const cast::Gone& event, TimePoint now);
  void on(const cast::EndsAll& event, TimePoint now);
  void on(const cast::Wake& event, TimePoint now);
  void start(int index);
  void settle(TimePoint now);
  [[nodiscard]] bool is_over() const;
  [[nodiscard]] RehearsedJob job() const;
  Node& at(int index) { return nodes_.at(static_cast<std::size_t>(index)); }

  RehearsalScript script_;
  std::vector<Node> nodes_;
  GatheredFaults faults_;
  std::vector<cast::Action> actions_;
  bool ends_all_ = false;
  bool finished_ = false;
};

}  // namespace torchup
