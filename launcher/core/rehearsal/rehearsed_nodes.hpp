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
/// Somebody ends the job: no agent is started any more, and nobody stays stopped.
struct EndsAll {
  int exit_code = 0;  ///< of the job, if no agent is there that could say
};
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
/// This agent is stopped, with all that it has started: they are to go on.
struct Resume {
  int node = 0;
  friend bool operator==(const Resume&, const Resume&) = default;
};
/// Always the last one.
struct Finish {
  RehearsalResult result = {};
  friend bool operator==(const Finish&, const Finish&) = default;
};
using Action = std::variant<Start, EndNode, Resume, Finish>;

}  // namespace cast

/// A stop that is only about to come when the job ends is not missed: Resume comes again after that time.
inline constexpr Duration resume_interval = std::chrono::milliseconds{100};

class RehearsedNodes {
 public:
  RehearsedNodes(RehearsalScript script, int nodes);

  std::vector<cast::Action> step(const cast::Event& event, TimePoint now);
  /// When to send the next Wake if nothing else happens; empty while only an event can change anything.
  [[nodiscard]] std::optional<TimePoint> deadline() const;

 private:
  struct Node {
    bool runs = false;
    bool placed = false;                          ///< it has a place in the job, as far as it knows
    std::optional<TimePoint> stopped_until = {};  ///< by a fault; it may be later than that when it goes on
    std::optional<TimePoint> resumed_at = {};     ///< the last Resume
    std::optional<RehearsalReport> leaves = {};   ///< a fault is about to end it
    std::optional<TimePoint> back_at = {};        ///< it is away until then
    std::optional<RehearsalStart> restart = {};   ///< for then
    std::optional<RehearsedJob> job = {};         ///< as it has seen it end
    bool ended = false;                           ///< by itself, not by a fault
    bool dismissed = false;                       ///< the job was over for the others, and it had no place in it
    int exit_code = 0;
  };

  void on(const cast::Begin& event, TimePoint now);
  void on(const cast::Told& event, TimePoint now);
  void on(const cast::Gone& event, TimePoint now);
  void on(const cast::EndsAll& event, TimePoint now);
  void on(const cast::Wake& event, TimePoint now);
  void start(int index);
  void settle(TimePoint now);
  void dismiss(int index, TimePoint now);
  void resume(int index, TimePoint now);
  [[nodiscard]] bool is_over() const;
  [[nodiscard]] RehearsedJob job() const;
  [[nodiscard]] static bool is_stopped(const Node& node, TimePoint now) {
    return node.runs && node.stopped_until && now < *node.stopped_until;
  }
  Node& at(int index) { return nodes_.at(static_cast<std::size_t>(index)); }

  RehearsalScript script_;
  std::vector<Node> nodes_;
  GatheredFaults faults_;
  std::vector<cast::Action> actions_;
  std::optional<int> ends_all_;  ///< EndsAll's code
  bool finished_ = false;
};

}  // namespace torchup
