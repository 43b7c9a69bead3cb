#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/rehearsal/rehearsal.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

/// What the starter of --rehearse-nodes and the agents that it has started say to each other.
namespace torchup {

/// Of one report, which holds what became of rehearsal_faults_max faults.
inline constexpr std::size_t rehearsal_report_bytes_max = std::size_t{1} << 20;
inline constexpr int rehearsed_nodes_max = 64;

/// Which node of a rehearsal an agent is.
struct RehearsedNode {
  int index = 0;                             ///< from 0
  int nodes = 1;                             ///< that the starter has started
  Port port{0};                              ///< of 127.0.0.1, where they meet
  std::optional<RehearsalStart> start = {};  ///< where the agent before was ended by a fault
  friend bool operator==(const RehearsedNode&, const RehearsedNode&) = default;
};
/// For the agent's environment.
[[nodiscard]] std::string to_text(const RehearsedNode& node);
/// Errors: errc::bad_value.
[[nodiscard]] Result<RehearsedNode> parse_rehearsed_node(std::string_view text);

/// What an agent tells its starter.
struct RehearsalReport {
  enum class What : std::uint8_t {
    placed,   ///< it has a place in the job
    waiting,  ///< it has lost it, and waits for another
    stopped,  ///< a fault is about to stop it
    away,     ///< a fault is about to end it
    ended,    ///< the job has ended
  };
  What what = What::placed;
  RehearsalStart restart = {};              ///< away: for the next agent
  std::optional<Duration> back = {};        ///< away: after which that one is to be started; nothing: never
  Duration lasts{0};                        ///< stopped: so long
  RehearsedJob job = {};                    ///< ended
  std::vector<RehearsedFault> faults = {};  ///< away and ended: what is known of them
  friend bool operator==(const RehearsalReport&, const RehearsalReport&) = default;
};
/// Lines, the last one "end".
[[nodiscard]] std::string encode(const RehearsalReport& report);
/// Takes the first report off the front of `input`; nothing: it is not whole yet. Errors: errc::bad_value.
[[nodiscard]] Result<std::optional<RehearsalReport>> take_rehearsal_report(std::string& input);

/// What all nodes know of the faults of one script: noticed by the first of them, over when all go on.
class GatheredFaults {
 public:
  /// `whole`: this node has seen the job's end, and a fault after which it did not go on was never over.
  void add(const std::vector<RehearsedFault>& faults, bool whole);
  /// In the order of time.
  [[nodiscard]] std::vector<RehearsedFault> all() const;

 private:
  struct Gathered {
    RehearsedFault fault;
    bool open = false;  ///< a node that has seen the end did not go on
  };
  std::vector<Gathered> faults_;
};

}  // namespace torchup
